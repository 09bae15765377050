"""Format of the turns of an episode record, and their conversion from and to `Turn`."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any, Literal, NotRequired, cast

from annotated_types import Len
from pydantic import AfterValidator, AllowInfNan, ConfigDict, with_config
from typing_extensions import TypedDict

from verl_agent.actions import action_from_json, action_text, action_to_json
from verl_agent.types import (
    Author,
    CallResult,
    Grade,
    Judgement,
    Media,
    Reply,
    Review,
    StepResult,
    StopReason,
    Turn,
    Usage,
)
from verl_agent.visible import one_line

_STOP_REASONS = frozenset(map(str, StopReason))


def _check_stop_reason(value: str) -> str:
    if value not in _STOP_REASONS:
        raise ValueError(f"Allowed: {', '.join(StopReason)}.")
    return value


StopName = Annotated[str, AfterValidator(_check_stop_reason)]
"""Value of a `StopReason`."""
Finite = Annotated[float, AllowInfNan(False)]
"""Number that is neither infinite nor NaN."""


@with_config(ConfigDict(strict=True))
class UsageRecord(TypedDict):
    """`Usage` as JSON."""

    model: str
    input_tokens: int | None
    cached_tokens: int | None
    cache_write_tokens: int | None
    output_tokens: int | None
    reasoning_tokens: int | None
    cost_usd: float | None
    dropped: list[str]
    finish: NotRequired[str]


@with_config(ConfigDict(strict=True))
class MediaRecord(TypedDict):
    """`Media` as JSON."""

    path: str
    title: str
    box: Annotated[list[float], Len(4, 4)] | None


@with_config(ConfigDict(strict=True))
class ReviewRecord(TypedDict):
    """`Review` as JSON."""

    decision: Literal["approved", "edited", "taken_over", "rejected", "ended"]
    by: str
    reason: str
    seconds: Finite


@with_config(ConfigDict(strict=True))
class CallRecord(TypedDict):
    """`ToolCall` as JSON."""

    name: str
    arguments: dict[str, Any]


@with_config(ConfigDict(strict=True))
class StepRecord(TypedDict):
    """`StepResult` as JSON; `observation` is null without a step."""

    observation: str | None
    reward: Finite
    terminated: bool
    info: dict[str, float]


@with_config(ConfigDict(strict=True))
class CallResultRecord(StepRecord):
    """`CallResult` as JSON; it has no step if the call was not answered."""

    name: str
    action: str | CallRecord | None
    errors: list[str]


@with_config(ConfigDict(strict=True))
class GradeRecord(TypedDict):
    """`Grade` as JSON."""

    criterion: str
    weight: Finite
    score: Finite
    reason: str


@with_config(ConfigDict(strict=True))
class JudgementRecord(TypedDict):
    """`Judgement` as JSON."""

    turn: int
    score: Finite
    reward: Finite
    grades: list[GradeRecord]
    replaced: Finite | None
    model: str
    cost_usd: Finite | None


@with_config(ConfigDict(strict=True))
class TurnRecord(StepRecord):
    """`Turn` as JSON.

    `action` is a text, or the object of a function call; `calls` is present where `Turn.calls` is not empty. `action`
    is null if the reply has no action, `observation` if the turn has no step, `truncated_by` if the reply is
    not truncated. `force_closed` and `rewritten` are present only where they are true; `rewritten` marks an action
    that the reply does not contain verbatim. `media` is present only where it is not empty, `usage` for models behind
    an API. `author` is present where another one than the policy wrote the reply, `proposed` where the policy had
    written another one, and `review` where a rule or a person decided on the turn.
    """

    reply: str
    action: str | CallRecord | None
    tokens: int
    truncated_by: StopName | None
    generate_s: float
    env_s: float
    force_closed: NotRequired[bool]
    rewritten: NotRequired[bool]
    usage: NotRequired[UsageRecord]
    media: NotRequired[list[MediaRecord]]
    author: NotRequired[Author]
    proposed: NotRequired[str]
    review: NotRequired[ReviewRecord]
    calls: NotRequired[list[CallResultRecord]]


def visible_info(step: StepResult) -> Mapping[str, float]:
    """Return the measurements of a step by their visible names; names that look alike then are summed."""
    found: dict[str, float] = defaultdict(float)
    for name, value in step.info.items():
        found[one_line(name)] += float(value)
    return found


def to_turn_record(turn: Turn) -> TurnRecord:
    """Convert a turn to its part of a record."""
    step = _step_record(turn.step)
    record: TurnRecord = {
        "reply": turn.reply.text,
        "action": action_to_json(turn.action),
        "tokens": turn.reply.tokens,
        "truncated_by": str(turn.reply.truncated_by) if turn.reply.truncated_by else None,
        "observation": step["observation"],
        "reward": step["reward"],
        "terminated": step["terminated"],
        "info": step["info"],
        "generate_s": round(turn.generate_s, 4),
        "env_s": round(turn.env_s, 4),
    }
    if turn.reply.force_closed:
        record["force_closed"] = True
    if turn.action is not None and str(turn.action) not in turn.reply.text:
        record["rewritten"] = True
    if turn.reply.usage is not None:
        record["usage"] = cast(UsageRecord, asdict(turn.reply.usage) | {"dropped": list(turn.reply.usage.dropped)})
    if turn.step and turn.step.media:
        record["media"] = [_media_record(media) for media in turn.step.media]
    if turn.reply.author != "policy":
        record["author"] = turn.reply.author
    if turn.reply.proposed is not None:
        record["proposed"] = turn.reply.proposed
    if (review := turn.reply.review) is not None:
        record["review"] = cast(ReviewRecord, asdict(review) | {"seconds": round(review.seconds, 3)})
    if turn.calls:
        record["calls"] = [_call_record(one) for one in turn.calls]
    return record


def _step_record(result: StepResult | None) -> StepRecord:
    step = result or StepResult("")
    return {
        "observation": result.observation if result else None,
        "reward": float(step.reward),
        "terminated": bool(step.terminated),
        "info": dict(visible_info(step)),
    }


def _to_step(record: StepRecord, media: Sequence[Media] = ()) -> StepResult | None:
    if record["observation"] is None:
        return None
    return StepResult(record["observation"], record["reward"], record["terminated"], record["info"], media)


def _call_record(result: CallResult) -> CallResultRecord:
    action, errors = action_to_json(result.action), list(result.errors)
    return {"name": result.name, "action": action, "errors": errors, **_step_record(result.step)}


def _to_call(record: CallResultRecord) -> CallResult:
    errors = tuple(record["errors"])
    return CallResult(action_from_json(record["action"]), _to_step(record), errors, name=record["name"])


def _media_record(media: Media) -> MediaRecord:
    box = None if media.box is None else [round(float(share), 4) for share in media.box]
    return {"path": media.path, "title": media.title, "box": box}


def to_judgement(record: JudgementRecord) -> Judgement:
    """Convert a part of a record back to its judgement."""
    fields: dict[str, Any] = {**record}
    return Judgement(**fields | {"grades": tuple(Grade(**one) for one in record["grades"])})


def to_turn(record: TurnRecord) -> Turn:
    """Convert a part of a record back to its turn."""
    truncated_by = StopReason(record["truncated_by"]) if record["truncated_by"] else None
    usage = None
    if "usage" in record:
        fields: dict[str, Any] = {**record["usage"]}
        usage = Usage(**fields | {"dropped": tuple(fields["dropped"])})
    reply = Reply(
        record["reply"],
        truncated_by,
        record["tokens"],
        record.get("force_closed", False),
        usage,
        author=record.get("author", "policy"),
        proposed=record.get("proposed"),
        review=Review(**record["review"]) if "review" in record else None,
    )
    step = _to_step(record, tuple(Media(**one) for one in record.get("media", ())))
    calls = tuple(map(_to_call, record.get("calls", ())))
    return Turn(reply, action_from_json(record["action"]), step, record["generate_s"], record["env_s"], calls)


def turn_text(turn: TurnRecord) -> str | None:
    """Return the actions of a turn as text, one a line; None without an action."""
    calls = [action_text(one["action"]) for one in turn.get("calls", ()) if one["action"] is not None]
    return "\n".join(filter(None, calls)) if calls else action_text(turn["action"])
