"""Recorded episode named by its file and line, and the identity that results refer to."""

import json
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path

from verl_agent.errors import ConfigError
from verl_agent.trace.record import EpisodeRecord, parse_record, to_episode
from verl_agent.trace.record_files import record_files
from verl_agent.types import Episode


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

    def check_turn(self, turn: int) -> None:
        """Check the number of a turn, counted from 1.

        Raises:
            ConfigError: the episode has no such turn.
        """
        turns = len(self.record["turns"])
        if not 1 <= turn <= turns:
            allowed = f"1 to {turns}" if turns else "none, since no turn was played"
            raise ConfigError(f"--turn {turn} is not a turn of {self.name}. Allowed: {allowed}.")


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
        line = next((line for place, line in enumerate(lines, start=1) if place == int(number)), None)
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
