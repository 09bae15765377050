"""Records, in the order in which they flow: task item, message, action, step, usage, review, reply, turn, episode."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from verl_agent.actions import Action as Action
from verl_agent.actions import ToolCall as ToolCall
from verl_agent.judgement import Grade as Grade
from verl_agent.judgement import Judgement as Judgement
from verl_agent.messages import Message as Message
from verl_agent.returns import reaches as reaches
from verl_agent.returns import sum_rewards
from verl_agent.stop_reason import StopReason as StopReason
from verl_agent.values import check_json


@dataclass(frozen=True, slots=True)
class TaskItem:
    """One task of an environment.

    Attributes:
        env: registered name of the environment; `id`: stable name, unique in its environment over all splits.
        data: JSON values from which the adapter resets to this task. Others raise a ConfigError.
        category: name of a group of tasks that metrics report separately, such as `depth 2`; may be empty.
    """

    env: str
    id: str
    data: Mapping[str, Any] = field(default_factory=dict)
    category: str = ""

    def __post_init__(self) -> None:
        check_json(self.data, f"TaskItem {self.id!r} of env {self.env!r}: data")


@dataclass(frozen=True, slots=True)
class DemoAction:
    """One action of an oracle. An agent renders it as a reply.

    Attributes:
        action: text that the environment takes, such as `get 1 oak log`, or the call of a function.
        thought: reason for the action, in one sentence; may be empty.
    """

    action: Action
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
        dropped: settings and `messages.FIELD` that the request left out because the model refuses them, sorted.
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


PEOPLE = ("person", "oracle")  # after whose intervention a turn does not measure the policy
Author: TypeAlias = Literal["policy", "person", "oracle", "overseer"]
"""Author of a reply: the policy, a person, an oracle in a person's place, or a program that oversees."""


@dataclass(frozen=True, slots=True)
class Review:
    """Decision on a turn before its action reached the environment.

    Attributes:
        decision: `edited`: another reply; `taken_over`: also later ones; `rejected`: no action; `ended`: the end.
        by: `rule` of an approval policy, one of `PEOPLE`, or the name of another overseer.
        reason: explanation, which the policy reads after a rejection; may be empty.
        seconds: time that the decision took. No time limit includes it.
    """

    decision: Literal["approved", "edited", "taken_over", "rejected", "ended"]
    by: str
    reason: str = ""
    seconds: float = 0.0

    @property
    def counts(self) -> bool:
        """True if the turn still measures the policy: it was approved, or a rule or another program rejected it."""
        return self.decision == "approved" or (self.decision == "rejected" and self.by not in PEOPLE)


@dataclass(frozen=True, slots=True)
class Reply:
    """Answer of a policy to the visible messages.

    Attributes:
        text: decoded reply without its end-of-turn token.
        truncated_by: token budget that truncated the reply and so ends the episode; None if the reply is played.
        tokens: number of generated tokens, 0 if unknown.
        prompt_tokens: tokens that an engine read before the reply, 0 if unknown.
        cached_tokens: tokens of them that it had read or written before, as far as the episode knows.
        force_closed: True if a token limit of the turn truncated the reply, which was played all the same.
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
    prompt_tokens: int = 0
    cached_tokens: int = 0
    paused_s: float = 0.0
    held_s: float = 0.0
    author: Author = "policy"
    proposed: str | None = None
    review: Review | None = None


@dataclass(frozen=True, slots=True)
class CallResult:
    """One action of a reply, and its answer.

    Attributes:
        action: action for the environment; None if the call has an error.
        step: answer of the environment or of the agent; None before the action is carried out.
        errors: kinds of the error, see `verl_agent.envs.call_error.CALL_ERRORS`; an action has them if it failed.
        info: measurements of the reading of the call.
        name: name of the function, as the model wrote it; "" if it is unknown.
    """

    action: Action | None
    step: StepResult | None = None
    errors: tuple[str, ...] = ()
    info: Mapping[str, float] = field(default_factory=dict)
    name: str = ""


@dataclass(frozen=True, slots=True)
class Turn:
    """One reply and its result.

    Attributes:
        reply: answer of the policy.
        action: action that the agent parsed from the reply, the first of several; None if it found none.
        step: answer to the reply, that of several calls as one; None if the episode ended before one.
        generate_s: seconds that the policy took, without `reply.paused_s` and `reply.held_s`; `env_s`: the environment.
        calls: function calls of the reply with their answers, where they are not one call without an error.
    """

    reply: Reply
    action: Action | None
    step: StepResult | None
    generate_s: float
    env_s: float
    calls: tuple[CallResult, ...] = ()

    @property
    def played(self) -> tuple[tuple[Action, StepResult], ...]:
        """All actions of the turn that reached the environment, in order, each with its answer."""
        pairs = ([(one.action, one.step) for one in self.calls] or [(self.action, self.step)]) * self.carried_out
        return tuple((action, step) for action, step in pairs if action is not None and step is not None)

    @property
    def actions(self) -> tuple[Action, ...]:
        """All actions of the turn that reached the environment, in order."""
        return tuple(action for action, _ in self.played)

    @property
    def carried_out(self) -> bool:
        """True if the environment carried the action out: it was not rejected, and no perturbation let it fail."""
        info = {"rejected_action": 1.0} if self.action is None or self.step is None else self.step.info
        return not (info.get("rejected_action") or info.get("perturbed_fault"))

    @property
    def operated(self) -> bool:
        """True if somebody else wrote the turn, or a person rejected or ended it."""
        review = self.reply.review
        return self.reply.author != "policy" or (review is not None and not review.counts)


@dataclass(slots=True)
class Episode:
    """One task played once, from reset to end. `play_once` fills it in; judge, match and agent loop complete it.

    Attributes:
        messages: whole conversation, prompt included.
        stop: reason for which the episode ended.
        error: message of the failed call, the prompt, the refused request or the person; "" for other stop reasons.
        success_reward: return from which the task counts as solved.
        prompt_length: number of messages before the first reply; `started_at`: time of the reset, seconds since 1970.
        replays: environment errors after which the actions so far were replayed on a fresh session, oldest first.
        oracle_turns: number of actions with which an oracle solves the task; None if none is known.
        judgements: verdicts of a judge, which the rewards contain with `mode: replace`.
        given_turns: turns of a solved episode in the prompt (`horizon.replay`); `success_reward` is less their rewards.
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
    judgements: list[Judgement] = field(default_factory=list)
    given_turns: int = 0

    @property
    def reward(self) -> float:
        """Return of the episode: the sum of its step rewards, in the environment's units."""
        return sum_rewards(self.rewards)

    @property
    def rewards(self) -> list[float]:
        """Rewards of the steps."""
        return [turn.step.reward for turn in self.turns if turn.step]

    @property
    def success(self) -> bool:
        """True if the task was solved."""
        return self.valid and self.stop is not StopReason.ACTION_ERROR and reaches(self.rewards, self.success_reward)

    @property
    def valid(self) -> bool:
        """True if the episode measures the policy and may be trained on; see `StopReason.valid`."""
        return self.stop.valid

    @property
    def operated(self) -> bool:
        """True if somebody intervened, so that the episode does not measure the policy alone."""
        return self.stop is StopReason.OPERATOR or any(turn.operated for turn in self.turns)

    @property
    def truncated(self) -> bool:
        """True if a limit ended the episode before its task was solved (truncation in the sense of Gymnasium)."""
        return self.stop.is_limit and not self.success

    def info_total(self, key: str) -> float:
        """Return the sum of one measurement over the steps."""
        return sum_rewards(turn.step.info.get(key, 0.0) for turn in self.turns if turn.step)
