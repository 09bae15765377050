"""Recorded episode named by its file and line, the identity that results refer to, and a question to its turns."""

import json
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from itertools import islice
from pathlib import Path

from verl_agent.errors import ConfigError
from verl_agent.evaluation.what_if.summary import comparable
from verl_agent.trace.record import EpisodeRecord, parse_record, to_episode
from verl_agent.trace.record_files import record_files
from verl_agent.types import Episode, Message


def fingerprint(line: bytes) -> str:
    """Return the identity of a recorded episode: a hash of its line, which stays where the file is moved or sorted."""
    return sha256(line.rstrip(b"\r\n")).hexdigest()[:16]


@dataclass(frozen=True)
class RecordedEpisode:
    """One line of a file of records.

    Attributes:
        fingerprint: identity of the episode, see `fingerprint`.
    """

    file: Path
    line: int
    fingerprint: str
    record: EpisodeRecord

    @property
    def name(self) -> str:
        """Name that `find_episode` takes."""
        return f"{self.file}:{self.line}"

    @cached_property
    def episode(self) -> Episode:
        """The record as an episode."""
        return to_episode(self.record)

    def messages_before(self, turn: int) -> list[Message]:
        """Return the messages before the reply of a turn, counted from 1."""
        return self.episode.messages[: self.episode.prompt_length + 2 * (turn - 1)]


@dataclass(frozen=True, slots=True)
class TurnQuestion:
    """Question to one turn of a recorded episode.

    Attributes:
        samples: number of replies, or of episodes after each action, >= 1.
        action: action to take instead of the recorded one; None for none.
        oracle: take the action of the environment's oracle.
        without_thought: draw replies without a thought too.
    """

    recorded: RecordedEpisode
    turn: int
    samples: int
    action: str | None = None
    oracle: bool = False
    without_thought: bool = False

    def __post_init__(self) -> None:
        turns = len(self.recorded.record["turns"])
        if not 1 <= self.turn <= turns:
            allowed = f"1 to {turns}" if turns else "none, since no turn was played"
            raise ConfigError(f"--turn {self.turn} is not a turn of {self.recorded.name}. Allowed: {allowed}.")
        if self.samples < 1:
            raise ConfigError(f"--samples {self.samples} is not allowed. Allowed: a whole number >= 1.")
        if self.action is not None and self.oracle:
            raise ConfigError("--action and --oracle name two actions. Give one of them.")
        if self.without_thought and self.plays_on:
            raise ConfigError("--without-thought asks for replies and plays no episode. Leave --action, --oracle out.")
        if self.action is not None and comparable(self.action) == comparable(self.recorded_action):
            raise ConfigError(f"--action {self.action!r} is the recorded action, so there is nothing to compare.")

    @property
    def plays_on(self) -> bool:
        """True if episodes are played on after another action; False if replies are drawn."""
        return self.action is not None or self.oracle

    @property
    def recorded_action(self) -> str | None:
        """Action of the recorded turn."""
        action = self.recorded.episode.turns[self.turn - 1].action
        return None if action is None else str(action)


def find_episode(name: str) -> RecordedEpisode:
    """Return the recorded episode that `FILE:LINE` names; lines count from 1.

    In place of the file, a folder is allowed that holds one file of records, such as that of an evaluation.

    Raises:
        ConfigError: the name is malformed, or the file or the line does not exist or is no record.
    """
    path, _, number = name.rpartition(":")
    if not path or not number.isdecimal() or int(number) < 1:
        raise ConfigError(
            f"{name!r} names no recorded episode. Allowed: FILE:LINE, such as runs/eval/NAME/episodes.jsonl:3. The "
            "viewer shows it at each turn."
        )
    file = _record_file(Path(path))
    with file.open("rb") as lines:
        line = next(islice(lines, int(number) - 1, None), None)
    if line is None:
        with file.open("rb") as lines:
            count = sum(1 for _ in lines)
        raise ConfigError(f"{file} has {count} lines, so {name!r} names no episode. Allowed: 1 to {count}.")
    try:
        record = parse_record(json.loads(line))
    except (ValueError, ConfigError) as error:
        raise ConfigError(f"{file}:{number} is no episode record: {error}") from error
    if record.get("given_turns"):
        raise ConfigError(
            f"{file}:{number} begins with turns of another episode (horizon.replay), so it cannot be replayed from its "
            "task. Name an episode of validation or of an evaluation."
        )
    return RecordedEpisode(file, int(number), fingerprint(line), record)


def _record_file(path: Path) -> Path:
    if not path.exists():
        raise ConfigError(f"No episode records at '{path}': no such file or folder.")
    if path.is_file():
        return path.resolve()
    files = record_files(path)
    if len(files) != 1:
        listed = ", ".join(str(file) for file in files[:5]) + (", ..." if len(files) > 5 else "")
        raise ConfigError(f"'{path}' holds {len(files)} files of records. Name one of them: {listed or 'none'}.")
    return files[0].resolve()
