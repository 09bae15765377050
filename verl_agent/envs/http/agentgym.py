"""How AgentGym's own servers are spoken to, environment by environment.

Facts from the servers and clients of github.com/WooooDyy/AgentGym (`agentenv-*/`, `agentenv/agentenv/envs/*.py`):
field names, what opens a session and begins a task, what the action is, and where score and end are found. The
texts below `instructions/` are our own words for what those servers understand.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from verl_agent.envs.action_format import ActionFormat, FenceFormat, LineFormat, TagFormat
from verl_agent.envs.http.protocols import number, pick, text
from verl_agent.errors import ConfigError, EnvError, EnvTimeoutError, did_you_mean
from verl_agent.types import Message, StepResult

TIMED_OUT = "TimeoutError"
"""Observation with which the web server says that it did not get through."""
AGREED = "OK. I'll follow your instructions and try my best to solve the task."


LINE = LineFormat()


@dataclass(frozen=True, slots=True)
class Dialect:
    """One environment's form of the protocol.

    Attributes:
        session: name of the session in requests.
        created: where `/create` answers it; "" if the answer is the session itself.
        create: body of `/create`.
        item: name of the item in `/reset`.
        reset: what else `/reset` wants.
        prompt: fields of the answer to `/reset` that make up the first observation; none if it has to be asked for.
        score: field of `/step` whose last value is the score of the episode.
        scale: what the score is divided by to lie between 0 and 1.
        done: field of `/step` that tells the end.
        any_score_ends: a score above 0 means that the task is solved, even where the server plays on.
        form: how replies mark an action.
        whole_reply: send the action with its marks, not alone.
        agreed: what the assistant answers to the instructions.
    """

    session: str = "id"
    created: str = "id"
    create: Mapping[str, Any] | None = None
    item: str = "data_idx"
    reset: Mapping[str, Any] = field(default_factory=dict)
    prompt: tuple[str, ...] = ("observation",)
    score: str = "reward"
    scale: float = 1.0
    done: str = "done"
    any_score_ends: bool = False
    action_format: ActionFormat = LINE
    whole_reply: bool = False
    agreed: str = AGREED


DIALECTS: Mapping[str, Dialect] = {
    "textcraft": Dialect(create={"commands": None, "goal": None}),
    # Its server ends an episode only above a reward of 0.5, and adds the reward again with every further action.
    "babyai": Dialect(score="score", any_score_ends=True),
    "sciworld": Dialect(prompt=("task_description", "observation"), score="score", scale=100.0),
    "searchqa": Dialect(
        "env_idx",
        "",
        {"id": 0},
        "id",
        prompt=(),
        action_format=TagFormat(tags=(("search", "query"), ("answer", "answer"))),
        whole_reply=True,
        agreed="Ok.",
    ),
    "webarena": Dialect(
        "env_idx",
        "env_idx",
        None,
        "idx",
        {"seed": 0},
        prompt=(),
        done="terminated",
        action_format=FenceFormat(placeholder="action"),
        whole_reply=True,
        agreed="Ok.",
    ),
}
"""By the task name that AgentGym uses."""


class AgentGymLanguage:
    """The language of one of AgentGym's servers. Items are `<env>_<number>`.

    Args:
        env: which environment, as AgentGym names it.
        instructions: what the model is told first, or None for the text that belongs to `env`.

    Raises:
        ConfigError: there is no such environment.
    """

    def __init__(self, env: str, instructions: str | None = None) -> None:
        if env not in DIALECTS:
            known = did_you_mean(env, DIALECTS)
            raise ConfigError(f"env.options.env={env!r} is none of AgentGym's that is known here. {known}")
        self.dialect = DIALECTS[env]
        self.session, self.create = self.dialect.session, self.dialect.create
        self.asks_observation = not self.dialect.prompt
        folder = Path(__file__).with_name("instructions")
        default = folder.joinpath(f"{env}.txt").read_text(encoding="utf-8").strip()
        self._instructions = default if instructions is None else instructions

    def read_session(self, answer: Any) -> Any:
        """See `ServerProtocol`."""
        return pick(answer, self.dialect.created) if self.dialect.created else answer

    def begin(self, item: str) -> dict[str, Any]:
        """See `ServerProtocol`."""
        return {self.dialect.item: int(item.rpartition("_")[2]), **self.dialect.reset}

    def read_prompt(self, answer: Any, observation: Any) -> list[Message]:
        """Instructions, consent and first observation, as AgentGym puts them to a model."""
        if isinstance(answer, Mapping) and answer.get("observation") == TIMED_OUT:
            raise EnvTimeoutError("the server could not begin the task in time.")
        if not self.asks_observation:
            observation = "\n".join(text(answer, name) for name in self.dialect.prompt)
        elif not isinstance(observation, str):
            raise EnvError(f"the server answered the observation {observation!r}, which is no text.")
        return [
            {"role": "user", "content": self._instructions},
            {"role": "assistant", "content": self.dialect.agreed},
            {"role": "user", "content": observation},
        ]

    def act(self, action: str) -> dict[str, Any]:
        """See `ServerProtocol`; some servers want the action marked as in a reply."""
        marked = not self.dialect.whole_reply or self.dialect.action_format.parse(action) is not None
        return {"action": action if marked else self.dialect.action_format.format(action)}

    def read_step(self, answer: Any, score: float) -> tuple[StepResult, float]:
        """See `ServerProtocol`. AgentGym's score is that of the last answer, so a step earns what it adds to it."""
        now = number(answer, self.dialect.score) / self.dialect.scale
        ended = bool(pick(answer, self.dialect.done)) or (self.dialect.any_score_ends and now > 0)
        return StepResult(text(answer, "observation"), now - score, ended), now
