"""Records, in the order in which they flow: task item, message, action, step, usage, review, reply, turn, episode."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, TypeAlias

from typing_extensions import TypedDict  # pydantic accepts that of `typing` only from Python 3.12 on


@dataclass(frozen=True, slots=True)
class TaskItem:
    """One task of an environment.

    Attributes:
        env: registered name of the environment.
        id: stable name of the item, unique in its environment over all splits.
        data: JSON values from which the adapter resets to this task.
        category: name of a group of tasks that metrics report separately, such as `depth 2`; may be empty.
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
    """One action of an oracle. An agent renders it as a reply.

    Attributes:
        action: text that the environment takes, such as `get 1 oak log`.
        thought: reason for the action, in one sentence; may be empty.
    """

    action: str
    thought: str = ""


Box: TypeAlias = Sequence[float]
"""Left, top, width and height of a place on an image, as shares of the image, 0 to 1."""


@dataclass(frozen=True, slots=True)
class Media:
    """Image file that shows a state of an environment, for people; the model does not see it.

    Attributes:
        path: path of the file, relative to the folder `media` of the run or evaluation, with forward slashes.
        title: text above the image.
        box: place on the image to mark, for example the element that was clicked; None for no mark.
    """

    path: str
    title: str = ""
    box: Box | None = None


@dataclass(frozen=True, slots=True)
class StepResult:
    """Answer of an environment to one action.

    Attributes:
        observation: text that the model reads next.
        reward: reward of this step; the return of an episode is the sum over its steps.
        terminated: True if the task has ended, solved or not.
        info: measurements that metrics sum over the episode, such as `{"invalid_action": 1.0}`.
        media: image files of the step. An environment behind HTTP sends none.
    """

    observation: str
    reward: float = 0.0
    terminated: bool = False
    info: Mapping[str, float] = field(default_factory=dict)
    media: Sequence[Media] = ()


class StopReason(StrEnum):
    """Reason for which an episode ended. Each one is a metric, `stop/<value>`."""

    TERMINATED = "terminated"
    """The environment ended the task."""
    TURN_LIMIT = "turn_limit"
    """The episode reached its turn limit."""
    TURN_TOKENS = "turn_tokens"
    """One reply reached the token budget of a turn."""
    EPISODE_TOKENS = "episode_tokens"
    """Replies and observations together reached the token budget of the episode."""
    ENV_ERROR = "env_error"
    """A call into the environment failed or timed out. The episode is recorded and not trained on."""
    ACTION_ERROR = "action_error"
    """The last action makes the environment fail in every fresh session. It counts as a failure of the policy."""
    OVERLONG_PROMPT = "overlong_prompt"
    """The prompt exceeds `data.max_prompt_length`: no turn was played. It is recorded and not trained on."""
    CANCELLED = "cancelled"
    """The run was stopped during the episode."""
    OPERATOR = "operator"
    """A person ended the episode. It is recorded, and neither counted nor trained on."""

    @property
    def is_limit(self) -> bool:
        """True if a limit on turns or tokens ended the episode, and not the task."""
        return self in (StopReason.TURN_LIMIT, StopReason.TURN_TOKENS, StopReason.EPISODE_TOKENS)

    @property
    def valid(self) -> bool:
        """True if an episode that ended for this reason measures the policy and may be trained on."""
        return self not in (StopReason.ENV_ERROR, StopReason.OVERLONG_PROMPT, StopReason.CANCELLED, StopReason.OPERATOR)


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens and cost of one reply of a model behind an API. None stands for a number that the server did not give.

    Attributes:
        model: name of the model that answered, as the server gives it; may be empty.
        input_tokens: tokens that the model read, cached ones included.
        cached_tokens: tokens of `input_tokens` that the server read from its cache.
        cache_write_tokens: tokens of `input_tokens` that the server wrote to its cache.
        output_tokens: tokens that the model wrote, its reasoning included.
        reasoning_tokens: tokens of `output_tokens` that are reasoning, which the reply does not contain.
        cost_usd: price of the reply in US dollars; None if its tokens or the prices are unknown.
        dropped: settings that the request left out because the model refuses them, in alphabetical order.
        finish: reason for the end of the reply as the server gives it, such as `stop` or `content_filter`.
    """

    model: str = ""
    input_tokens: int | None = None
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None
    output_tokens: int | None = None
    reasoning_tokens: int | None = None
    cost_usd: float | None = None
    dropped: tuple[str, ...] = ()
    finish: str = ""


Author: TypeAlias = Literal["policy", "person", "oracle"]
"""Author of a reply: the policy, a person, or an oracle in a person's place."""
Reviewer: TypeAlias = Literal["rule", "person", "oracle"]
"""Author of a decision on a reply: a rule of an approval policy, a person, or an oracle in a person's place."""


@dataclass(frozen=True, slots=True)
class Review:
    """Decision on a turn before its action reached the environment.

    Attributes:
        decision: `edited` plays another reply; `taken_over` also those of the next turns; `rejected` does not carry the
            action out; `ended` neither this one nor any other.
        by: author of the decision.
        reason: explanation, which the policy reads after a rejection; may be empty.
        seconds: time that the decision took. No time limit includes it.
    """

    decision: Literal["approved", "edited", "taken_over", "rejected", "ended"]
    by: Reviewer
    reason: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Reply:
    """Answer of a policy to the visible messages.

    Attributes:
        text: decoded reply without its end-of-turn token.
        truncated_by: token budget that truncated the reply and so ends the episode; None if the reply is played.
        tokens: number of generated tokens, 0 if unknown.
        force_closed: True if the token budget of the turn truncated the reply, which was played all the same.
        usage: tokens and cost of a model behind an API; None for other policies.
        paused_s: seconds in which the engine was paused for an update of its weights.
        held_s: seconds in which an overseer held the turn.
        author: author of the text.
        proposed: text of the policy where another one replaces it; else None.
        review: decision on the reply; None if nobody reviewed it.
    """

    text: str
    truncated_by: StopReason | None = None
    tokens: int = 0
    force_closed: bool = False
    usage: Usage | None = None
    paused_s: float = 0.0
    held_s: float = 0.0
    author: Author = "policy"
    proposed: str | None = None
    review: Review | None = None

    @property
    def complete(self) -> bool:
        """True if the model itself ended the reply."""
        return self.truncated_by is None and not self.force_closed


@dataclass(frozen=True, slots=True)
class Turn:
    """One reply and its result.

    Attributes:
        reply: answer of the policy.
        action: action that the agent parsed from the reply; None if it found none.
        step: answer to the reply, from the environment or the agent; None if the episode ended before one.
        generate_s: seconds that the policy took, without `reply.paused_s` and `reply.held_s`.
        env_s: seconds that the environment took.
    """

    reply: Reply
    action: str | None
    step: StepResult | None
    generate_s: float
    env_s: float

    @property
    def carried_out(self) -> bool:
        """True if the environment carried the action out: it was not rejected, and no perturbation let it fail."""
        if self.action is None or self.step is None:
            return False
        return not (self.step.info.get("rejected_action") or self.step.info.get("perturbed_fault"))

    @property
    def operated(self) -> bool:
        """True if a person, or an oracle in a person's place, wrote, rejected or ended the turn."""
        review, written = self.reply.review, self.reply.author != "policy"
        return written or (review is not None and review.by != "rule" and review.decision != "approved")

    @property
    def rewritten(self) -> bool:
        """True if the reply does not contain the action verbatim: parsing changed it, or rendered a function call."""
        return self.action is not None and self.action not in self.reply.text


@dataclass(slots=True)
class Episode:
    """One task played once, from reset to end. `play()` fills it in; later code only reads it.

    Attributes:
        item: task that is played.
        max_turns: turn limit of this episode.
        messages: whole conversation, prompt included.
        turns: one entry for each reply.
        stop: reason for which the episode ended.
        error: message of the failed call, the overlong prompt or the person; "" for other stop reasons.
        success_reward: return from which the environment counts the task as solved.
        prompt_length: number of messages before the first reply.
        started_at: time of the reset, in seconds since the epoch.
        seconds: duration from reset to close.
        replays: environment errors after which the actions so far were replayed on a fresh session, oldest first.
        oracle_turns: number of actions with which an oracle solves the task; None if none is known.
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
    replays: list[str] = field(default_factory=list)
    oracle_turns: int | None = None

    @property
    def reward(self) -> float:
        """Return of the episode: the sum of its step rewards, in the environment's units."""
        return sum(turn.step.reward for turn in self.turns if turn.step)

    @property
    def success(self) -> bool:
        """True if the task was solved."""
        return self.valid and self.stop is not StopReason.ACTION_ERROR and self.reward >= self.success_reward

    @property
    def valid(self) -> bool:
        """True if the episode measures the policy and may be trained on; see `StopReason.valid`."""
        return self.stop.valid

    @property
    def operated(self) -> bool:
        """True if a person intervened, so that the episode does not measure the policy alone."""
        return self.stop is StopReason.OPERATOR or any(turn.operated for turn in self.turns)

    @property
    def truncated(self) -> bool:
        """True if a limit ended the episode before its task was solved (truncation in the sense of Gymnasium)."""
        return self.stop.is_limit and not self.success

    def info_total(self, key: str) -> float:
        """Return the sum of one measurement over the steps."""
        return sum(turn.step.info.get(key, 0.0) for turn in self.turns if turn.step)
