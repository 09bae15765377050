"""The one versioned JSONL record of an episode, that viewer, metrics and offline training read."""

import json
import logging
import mmap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NotRequired, Self, TypedDict, cast

from verl_agent.errors import ConfigError
from verl_agent.types import Episode, Message, Reply, StepResult, StopReason, TaskItem, Turn

logger = logging.getLogger(__name__)

EPISODE_RECORD_VERSION = 1
"""Raised when a field changes its meaning or goes; a new optional field does not raise it."""

Purpose = Literal["train", "validation", "evaluation", "collection"]
"""What an episode was played for; `collection` gathers episodes to learn from."""


@dataclass(frozen=True, slots=True)
class EpisodeMeta:
    """Where an episode belongs in a run.

    Attributes:
        purpose: what it was played for.
        split: the split of the environment that its task is from.
        step: global training step, 0 before or outside training.
        group: episodes of the same task that are compared with each other share it.
        sample: index in the group, from 0.
        attempt: 1, and one more for each replay after a failed environment.
        started_at: when it was reset; with a time zone.
        seconds: wall-clock time from reset to close.
        model: the policy's name or checkpoint.
        shaped_return: what it taught, where that is not its raw return: scaled, with costs (section `credit`).
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


class TurnRecord(TypedDict):
    """`Turn` as JSON; `action` and `observation` are null if there was none; `closed` is left out where it is false."""

    reply: str
    action: str | None
    tokens: int
    cut: str | None
    observation: str | None
    reward: float
    terminated: bool
    info: dict[str, float]
    generate_s: float
    env_s: float
    closed: NotRequired[bool]


class EpisodeRecord(TypedDict):
    """`Episode` and `EpisodeMeta` as one line of JSON, in this order."""

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
    started_at: str
    seconds: float
    max_turns: int
    reward: float
    success: bool
    success_reward: float
    stop: str
    error: str
    turns: list[TurnRecord]
    messages: list[Message]
    data: dict[str, Any]
    shaped_return: NotRequired[float]


def to_record(episode: Episode, origin: EpisodeMeta) -> EpisodeRecord:
    """The record of `episode`."""
    record: EpisodeRecord = {
        "version": EPISODE_RECORD_VERSION,
        "purpose": origin.purpose,
        "env": episode.item.env,
        "task": episode.item.id,
        "category": episode.item.category,
        "split": origin.split,
        "step": origin.step,
        "group": origin.group,
        "sample": origin.sample,
        "attempt": origin.attempt,
        "model": origin.model,
        "started_at": origin.started_at.isoformat(timespec="milliseconds"),
        "seconds": round(origin.seconds, 3),
        "max_turns": episode.max_turns,
        "reward": float(episode.reward),
        "success": bool(episode.success),
        "success_reward": float(episode.success_reward),
        "stop": str(episode.stop),
        "error": episode.error,
        "turns": [_turn_record(turn) for turn in episode.turns],
        "messages": list(episode.messages),
        "data": dict(episode.item.data),
    }
    if origin.shaped_return is not None:
        record["shaped_return"] = float(origin.shaped_return)
    return record


def episode_of(record: EpisodeRecord) -> Episode:
    """Return the episode that was recorded."""
    turns = [_turn_of(turn) for turn in record["turns"]]
    played = sum(1 if turn.step is None else 2 for turn in turns)  # a reply, and its observation
    return Episode(
        item=TaskItem(record["env"], record["task"], record["data"], record["category"]),
        max_turns=record["max_turns"],
        messages=list(record["messages"]),
        turns=turns,
        stop=StopReason(record["stop"]),
        error=record["error"],
        success_reward=record["success_reward"],
        prompt_length=len(record["messages"]) - played,
    )


class EpisodeWriter:
    """Appends records to one file, each on disk before `write` returns.

    One process writes a file. A line that a killed process left unfinished is cut off on opening,
    so that the file stays readable after a restart.

    Args:
        path: the file, created with its folders if missing.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        _cut_torn_line(self.path)
        self._file = self.path.open("a", encoding="utf-8")

    def write(self, record: EpisodeRecord) -> None:
        """Append one line."""
        self._file.write(json.dumps(record) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file. May be called more than once."""
        self._file.close()

    def __enter__(self) -> Self:
        """The writer itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Close the file."""
        self.close()


def read_records(paths: Path | str | Iterable[Path | str]) -> Iterator[EpisodeRecord]:
    """Records of files, and of all `*.jsonl` files below folders, in the order of their names.

    The folder of a training run stands for its `episodes/`.

    Raises:
        ConfigError: a path does not exist, or a line is no episode record that this version reads.
            An unfinished last line is only warned about.
    """
    for path in map(Path, [paths] if isinstance(paths, Path | str) else paths):
        if not path.exists():
            raise ConfigError(f"No episode records at '{path}': no such file or folder.")
        of_run = (path / "episodes").is_dir() and (path / "metrics").is_dir()
        played = path / "episodes" if of_run else path
        for file in sorted(played.rglob("*.jsonl")) if played.is_dir() else [played]:
            yield from _read_file(file)


def _read_file(path: Path) -> Iterator[EpisodeRecord]:
    with path.open(encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                value = json.loads(line)
            except json.JSONDecodeError as e:
                if not line.endswith("\n"):
                    logger.warning("%s:%d: left out an unfinished last line", path, number)
                    return
                raise ConfigError(f"{path}:{number}: not JSON ({e}). Remove the line to read the rest.") from e
            version = value.get("version") if isinstance(value, dict) else None
            if not isinstance(version, int):
                raise ConfigError(f"{path}:{number}: not an episode record: it has no version number.")
            if version > EPISODE_RECORD_VERSION:
                raise ConfigError(
                    f"{path}:{number}: episode record of version {version}, but this verl_agent reads versions "
                    f"up to {EPISODE_RECORD_VERSION}. Update verl_agent."
                )
            yield cast(EpisodeRecord, value)


def _turn_record(turn: Turn) -> TurnRecord:
    step = turn.step or StepResult("")
    record: TurnRecord = {
        "reply": turn.reply.text,
        "action": turn.action,
        "tokens": turn.reply.tokens,
        "cut": str(turn.reply.truncated_by) if turn.reply.truncated_by else None,
        "observation": turn.step.observation if turn.step else None,
        "reward": float(step.reward),
        "terminated": bool(step.terminated),
        "info": {key: float(value) for key, value in step.info.items()},
        "generate_s": round(turn.generate_s, 4),
        "env_s": round(turn.env_s, 4),
    }
    if turn.reply.force_closed:
        record["closed"] = True
    return record


def _turn_of(turn: TurnRecord) -> Turn:
    cut = StopReason(turn["cut"]) if turn["cut"] else None
    observation = turn["observation"]
    answer = None
    if observation is not None:
        answer = StepResult(observation, turn["reward"], turn["terminated"], turn["info"])
    reply = Reply(turn["reply"], cut, turn["tokens"], turn.get("closed", False))
    return Turn(reply, turn.get("action"), answer, turn["generate_s"], turn["env_s"])


def _cut_torn_line(path: Path) -> None:
    if not path.exists() or path.stat().st_size == 0:
        return
    with path.open("rb+") as file:
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            size, whole = len(content), content.rfind(b"\n") + 1
        if whole < size:
            logger.warning("%s: cut off an unfinished last line of %d bytes", path, size - whole)
            file.truncate(whole)
