"""The records, in the order in which they flow: task item, message, step, turn, episode."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

from typing_extensions import TypedDict  # pydantic accepts that of `typing` only from Python 3.12 on


@dataclass(frozen=True, slots=True)
class TaskItem:
    """One task of an environment.

    Attributes:
        env: registered name of the environment.
        id: stable name of the item, unique in its environment over all splits.
        data: what the adapter needs to reset to it; JSON values only.
        category: group that evaluation reports separately, such as `depth 2`.
    """

    env: str
    id: str
    data: Mapping[str, Any] = field(default_factory=dict)
    category: str = ""


class Message(TypedDict):
    """One chat message."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str


@dataclass(frozen=True, slots=True)
class DemoAction:
    """One action of an oracle; an agent makes a reply of it.

    Attributes:
        action: as the environment takes it, such as `get 1 oak log`.
        thought: why, in a sentence; may be empty.
    """

    action: str
    thought: str = ""


@dataclass(frozen=True, slots=True)
class StepResult:
    """What an environment answers to one action.

    Attributes:
        observation: text that the model reads next.
        reward: what this step alone earned; the return of an episode is the sum of its steps.
        terminated: the task has ended, well or not.
        info: measurements to be averaged over episodes, such as `{"invalid_action": 1.0}`.
    """

    observation: str
    reward: float = 0.0
    terminated: bool = False
    info: Mapping[str, float] = field(default_factory=dict)


class StopReason(StrEnum):
    """Why an episode ended. Each one is a metric, `stop/<value>`."""

    TERMINATED = "terminated"
    """The environment said so."""
    TURN_LIMIT = "turn_limit"
    """The horizon was reached."""
    TURN_TOKENS = "turn_tokens"
    """One reply reached the token budget of a turn."""
    EPISODE_TOKENS = "episode_tokens"
    """Prompt, replies and observations reached the token budget of the episode."""
    ENV_ERROR = "env_error"
    """The environment failed or hung; the episode carries no reward and is not trained on."""
    CANCELLED = "cancelled"
    """The run was stopped while the episode was played."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What a policy answers.

    Attributes:
        text: the decoded reply without its end-of-turn token.
        truncated_by: the budget that ended the episode with it, before the model had ended it; or None.
        tokens: number of tokens generated, 0 if unknown.
        force_closed: whether it was closed for the model and played (`episode.on_truncated_turn=play`).
    """

    text: str
    truncated_by: StopReason | None = None
    tokens: int = 0
    force_closed: bool = False

    @property
    def complete(self) -> bool:
        """Whether the model itself wrote its end."""
        return self.truncated_by is None and not self.force_closed


@dataclass(frozen=True, slots=True)
class Turn:
    """One reply and what came of it.

    Attributes:
        reply: the policy's words.
        action: what was read out of it and given to the environment; None if nothing could be read.
        step: what it led to, the environment's answer as a rule; None if there was none.
        generate_s: seconds that the policy took.
        env_s: seconds that the environment took.
    """

    reply: Reply
    action: str | None
    step: StepResult | None
    generate_s: float
    env_s: float

    @property
    def rewritten(self) -> bool:
        """True if the reply does not contain the action verbatim: parsing changed it, or rendered a function call."""
        return self.action is not None and self.action not in self.reply.text


@dataclass(slots=True)
class Episode:
    """One task played once, from reset to its end. Written to while it is played, then left alone.

    Attributes:
        item: the task.
        max_turns: the horizon that it was played under.
        messages: the whole conversation, prompt included.
        prompt_length: number of messages before the first reply.
        turns: one entry for each reply.
        stop: why it ended.
        error: what failed, for `StopReason.ENV_ERROR`.
        started_at: when it was reset, seconds since the epoch.
        seconds: from reset to close.
        success_reward: return from which the environment counts the task as solved.
    """

    item: TaskItem
    max_turns: int
    messages: list[Message] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    stop: StopReason = StopReason.CANCELLED
    error: str = ""
    success_reward: float = 1.0
    prompt_length: int = 0
    started_at: float = 0.0
    seconds: float = 0.0

    @property
    def reward(self) -> float:
        """The return: the sum of what its steps earned, in the environment's own units."""
        return sum(turn.step.reward for turn in self.turns if turn.step)

    @property
    def success(self) -> bool:
        """Whether the task was solved."""
        return self.stop is not StopReason.ENV_ERROR and self.reward >= self.success_reward

    @property
    def valid(self) -> bool:
        """Whether the episode may be learnt from: the environment did its part to the end."""
        return self.stop not in (StopReason.ENV_ERROR, StopReason.CANCELLED)

    def info(self, key: str) -> float:
        """Sum of one measurement over the steps."""
        return sum(turn.step.info.get(key, 0.0) for turn in self.turns if turn.step)
