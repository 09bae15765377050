"""Protocols between client and server: bodies of requests and meaning of answers, without any connection."""

from collections.abc import Mapping
from typing import Any

from verl_agent.errors import EnvError
from verl_agent.types import Message, StepResult


class ServerProtocol:
    """Client side of `verl-agent serve`: tasks have names, answers hold whole prompts; subclasses speak with others.

    Attributes:
        session_field: field of requests with the id of the session.
        needs_observation: true if the first observation takes a call of `/observation`.
    """

    session_field = "id"
    create_body: Mapping[str, Any] | None = None
    needs_observation = False

    def read_session(self, answer: Any) -> Any:
        """Return the session id in the answer to `/create`."""
        return read_field(answer, "id")

    def reset_body(self, item: str) -> dict[str, Any]:
        """Return the body of `/reset` without the session."""
        return {"item": item}

    def read_prompt(self, answer: Any, observation: Any) -> list[Message]:
        """Return the prompt."""
        return [{"role": message["role"], "content": message["content"]} for message in read_field(answer, "messages")]

    def step_body(self, action: str) -> dict[str, Any]:
        """Return the body of `/step` without the session."""
        return {"bare_action": action}

    def read_step(self, answer: Any, score: float) -> tuple[StepResult, float]:
        """Return the result of a step and the score after it."""
        reward = read_number(answer, "reward")
        info = {str(name): float(value) for name, value in read_field(answer, "info").items()}
        result = StepResult(read_string(answer, "observation"), reward, bool(read_field(answer, "done")), info)
        return result, score + reward


def read_field(answer: Any, key: str) -> Any:
    """Return one field of an answer.

    Raises:
        EnvError: the field is missing, or the answer is not an object.
    """
    if not isinstance(answer, Mapping):
        raise EnvError(f"the server's answer must be an object with {key!r}, got {type(answer).__name__}.")
    if key not in answer:
        fields = ", ".join(map(str, answer)) or "no field"
        raise EnvError(f"the server's answer has no {key!r}. It has: {fields}. Check env.options.protocol.")
    return answer[key]


def read_number(answer: Any, key: str) -> float:
    """Return one field of an answer that must be a number."""
    value = read_field(answer, key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise EnvError(f"the server answered {key}={value!r}, which is not a number.")
    return float(value)


def read_string(answer: Any, key: str) -> str:
    """Return one field of an answer that must be a text."""
    value = read_field(answer, key)
    if not isinstance(value, str):
        raise EnvError(f"the server answered {key}={value!r}, which is not a text.")
    return value
