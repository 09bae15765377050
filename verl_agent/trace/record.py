"""Format of episode records: fields, conversion from and to `Episode`, and validation."""

import json
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Annotated, Any, Literal, NotRequired, cast

from pydantic import AfterValidator, ConfigDict, TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict

from verl_agent.errors import ConfigError
from verl_agent.sections import explain_validation
from verl_agent.trace.turn_record import (
    Finite,
    JudgementRecord,
    StopName,
    TurnRecord,
    to_judgement,
    to_turn,
    to_turn_record,
)
from verl_agent.types import Episode, Message, StopReason, TaskItem

EPISODE_RECORD_VERSION = 2
"""Version that is written. It increases when a field changes its meaning or disappears, not for a new optional one."""

Purpose = Literal["train", "validation", "test", "evaluation", "collection"]
"""Purpose of an episode. A training run chooses its best checkpoint on episodes of `validation`, and measures on those
of `test`; `collection` gathers episodes to learn from."""


def _check_time(value: str) -> str:
    datetime.fromisoformat(value)
    return value


Time = Annotated[str, AfterValidator(_check_time)]
"""Time in ISO 8601."""


@dataclass(frozen=True, slots=True)
class EpisodeMeta:
    """Position of an episode in a run.

    Attributes:
        split: split of the environment, or file of task ids, that the task belongs to.
        step: global training step, 0 before or outside training.
        group: name shared by the episodes of one task that are compared with each other.
        sample: index in the group, from 0.
        attempt: number of this attempt, from 1; each one that begins anew after an environment error adds one.
        started_at: time of the reset, with a time zone.
        seconds: wall-clock time from reset to close.
        shaped_return: return after reward shaping (section `credit`); None where it is the raw return.
        env_label: label of the environment in the run, see `verl_agent.config.mixture`; "" for its name.
    """

    purpose: Purpose
    split: str
    step: int
    group: str
    sample: int
    started_at: datetime
    seconds: float
    attempt: int = 1
    model: str = ""
    shaped_return: float | None = None
    env_label: str = ""


@with_config(ConfigDict(strict=True))
class EpisodeRecord(TypedDict):
    """`Episode` and `EpisodeMeta` as one line of JSON.

    `shaped_return` and `oracle_turns` are present only where they are set, `replays` only where it is not empty, and
    `env_label` only where a mixture gives its environment another label than the name; `judgements` only with a judge,
    and `given_turns` only where it is not 0. `unknown` names the fields that the source of an imported episode does not
    state, and is absent in others.
    """

    version: int
    purpose: Purpose
    env: str
    task: str
    category: str
    split: str
    step: int
    group: str
    sample: int
    attempt: int
    model: str
    started_at: Time
    seconds: Finite
    max_turns: int
    prompt_length: int
    reward: Finite
    success: bool
    success_reward: Finite
    stop: StopName
    error: str
    turns: list[TurnRecord]
    messages: list[Message]
    data: dict[str, Any]
    shaped_return: NotRequired[Finite]
    oracle_turns: NotRequired[int]
    replays: NotRequired[list[str]]
    env_label: NotRequired[str]
    judgements: NotRequired[list[JudgementRecord]]
    given_turns: NotRequired[int]
    unknown: NotRequired[list[str]]


_RECORD = TypeAdapter(EpisodeRecord)


def to_record(episode: Episode, meta: EpisodeMeta) -> EpisodeRecord:
    """Convert an episode to its record."""
    record: EpisodeRecord = {
        "version": EPISODE_RECORD_VERSION,
        "purpose": meta.purpose,
        "env": episode.item.env,
        "task": episode.item.id,
        "category": episode.item.category,
        "split": meta.split,
        "step": meta.step,
        "group": meta.group,
        "sample": meta.sample,
        "attempt": meta.attempt,
        "model": meta.model,
        "started_at": meta.started_at.isoformat(timespec="milliseconds"),
        "seconds": round(meta.seconds, 3),
        "max_turns": episode.max_turns,
        "prompt_length": episode.prompt_length,
        "reward": float(episode.reward),
        "success": bool(episode.success),
        "success_reward": float(episode.success_reward),
        "stop": str(episode.stop),
        "error": episode.error,
        "turns": [to_turn_record(turn) for turn in episode.turns],
        "messages": list(episode.messages),
        "data": dict(episode.item.data),
    }
    if meta.shaped_return is not None:
        record["shaped_return"] = float(meta.shaped_return)
    if episode.oracle_turns is not None:
        record["oracle_turns"] = int(episode.oracle_turns)
    if episode.replays:
        record["replays"] = list(episode.replays)
    if meta.env_label not in ("", episode.item.env):
        record["env_label"] = meta.env_label
    if episode.given_turns:
        record["given_turns"] = int(episode.given_turns)
    if episode.judgements:
        record["judgements"] = [
            cast(JudgementRecord, asdict(one) | {"grades": [asdict(grade) for grade in one.grades]})
            for one in episode.judgements
        ]
    return record


TaskKey = tuple[str, str]
"""Label of an environment in its run, and id of a task. Entries of a mixture with the same environment may differ in
options, agent and prompt, so their tasks are different ones."""


def env_label(record: EpisodeRecord) -> str:
    """Return the label of a record's environment: that of its entry in a mixture, else its name."""
    return record.get("env_label", record["env"])


def task_key(record: EpisodeRecord) -> TaskKey:
    """Return the key of a record's task, by which episodes belong together."""
    return env_label(record), record["task"]


def to_episode(record: EpisodeRecord) -> Episode:
    """Convert a record back to its episode."""
    return Episode(
        item=TaskItem(record["env"], record["task"], record["data"], record["category"]),
        max_turns=record["max_turns"],
        messages=list(record["messages"]),
        turns=[to_turn(turn) for turn in record["turns"]],
        stop=StopReason(record["stop"]),
        error=record["error"],
        success_reward=record["success_reward"],
        prompt_length=record["prompt_length"],
        replays=list(record.get("replays", ())),
        oracle_turns=record.get("oracle_turns"),
        judgements=[to_judgement(one) for one in record.get("judgements", ())],
        given_turns=record.get("given_turns", 0),
    )


def is_operated(record: EpisodeRecord) -> bool:
    """Return `Episode.operated` of a record; turns without these fields, which are most, are not converted."""
    decided = (to_turn(turn) for turn in record["turns"] if "author" in turn or "review" in turn)
    return record["stop"] == StopReason.OPERATOR or any(turn.operated for turn in decided)


def parse_line(line: bytes) -> EpisodeRecord:
    """Decode and validate one line of JSON; faster than `parse_record`, but optional fields that are unknown are lost.

    Raises:
        ValueError: the line is not JSON.
    """
    try:
        record = _RECORD.validate_json(line)
        if record["version"] == EPISODE_RECORD_VERSION:
            return record
    except ValidationError:
        pass  # the slow way explains it
    return parse_record(json.loads(line))


def parse_record(value: Any) -> EpisodeRecord:
    """Validate a decoded line of JSON and return it as a record.

    Raises:
        ConfigError: the line is not a record, is of another version, or has an invalid field.
    """
    version = value.get("version") if isinstance(value, dict) else None
    if not isinstance(version, int):
        raise ConfigError("not an episode record: it has no version number.")
    if version != EPISODE_RECORD_VERSION:
        raise ConfigError(
            f"episode record of version {version}, but this verl_agent reads version {EPISODE_RECORD_VERSION}. "
            "Use the version of verl_agent that wrote it."
        )
    try:
        _RECORD.validate_python(value)
    except ValidationError as error:
        first, *_ = explain_validation(error, "", EpisodeRecord).splitlines()
        raise ConfigError(f"{first} Remove the line to read the rest.") from error
    return cast(EpisodeRecord, value)
