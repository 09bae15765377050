"""How a server is spoken to: what the calls carry, and what their answers mean. No connection is made here."""

from collections.abc import Mapping
from typing import Any, Protocol

from verl_agent.errors import EnvError
from verl_agent.types import Message, StepResult


class ServerProtocol(Protocol):
    """One form of AgentGym's protocol, seen from a client.

    Attributes:
        session: name of the session in requests.
        create: body of `/create`.
        asks_observation: whether the first observation has to be asked for.
    """

    session: str
    create: Mapping[str, Any] | None
    asks_observation: bool

    def read_session(self, answer: Any) -> Any:
        """The session in the answer to `/create`."""
        ...

    def begin(self, item: str) -> dict[str, Any]:
        """Body of `/reset`, but for the session."""
        ...

    def read_prompt(self, answer: Any, observation: Any) -> list[Message]:
        """The prompt in the answers to `/reset` and, if that has to be asked, to `/observation`."""
        ...

    def act(self, action: str) -> dict[str, Any]:
        """Body of `/step`, but for the session."""
        ...

    def read_step(self, answer: Any, score: float) -> tuple[StepResult, float]:
        """What a step gave, and the score after it; `score` is that before it."""
        ...


class OwnLanguage:
    """What `verl-agent serve` understands: tasks by name, whole prompts."""

    session = "id"
    create: Mapping[str, Any] | None = None
    asks_observation = False

    def read_session(self, answer: Any) -> Any:
        """See `ServerProtocol`."""
        return pick(answer, "id")

    def begin(self, item: str) -> dict[str, Any]:
        """See `ServerProtocol`."""
        return {"item": item}

    def read_prompt(self, answer: Any, observation: Any) -> list[Message]:
        """See `ServerProtocol`."""
        return [{"role": message["role"], "content": message["content"]} for message in pick(answer, "messages")]

    def act(self, action: str) -> dict[str, Any]:
        """See `ServerProtocol`."""
        return {"bare_action": action}

    def read_step(self, answer: Any, score: float) -> tuple[StepResult, float]:
        """See `ServerProtocol`."""
        reward = number(answer, "reward")
        info = {str(name): float(value) for name, value in pick(answer, "info").items()}
        return StepResult(text(answer, "observation"), reward, bool(pick(answer, "done")), info), score + reward


def pick(answer: Any, key: str) -> Any:
    """One field of an answer.

    Raises:
        EnvError: the answer has no such field.
    """
    if not isinstance(answer, Mapping) or key not in answer:
        found = ", ".join(map(str, answer)) if isinstance(answer, Mapping) else type(answer).__name__
        raise EnvError(f"the server's answer has no {key!r}, only: {found or 'nothing'}. Does it speak this protocol?")
    return answer[key]


def number(answer: Any, key: str) -> float:
    """One field of an answer that is a number."""
    value = pick(answer, key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise EnvError(f"the server answered {key}={value!r}, which is no number.")
    return float(value)


def text(answer: Any, key: str) -> str:
    """One field of an answer that is a text."""
    value = pick(answer, key)
    if not isinstance(value, str):
        raise EnvError(f"the server answered {key}={value!r}, which is no text.")
    return value
