"""Parts of long episodes: the index knows the place of every 50 turns, so that a page reads no more than it shows."""

import json
from dataclasses import dataclass

from verl_agent.errors import ConfigError
from verl_agent.trace.behaviors import behavior_turns
from verl_agent.trace.record import EpisodeRecord, parse_record
from verl_agent.types import Message
from verl_agent.viewer.index import RecordIndex
from verl_agent.viewer.parsing import PART
from verl_agent.viewer.storage import stored_path

LONG = 2_000_000
"""Bytes of a record above which no page reads all of it."""


@dataclass(frozen=True, slots=True)
class EpisodePart:
    """Turns of an episode that one page shows.

    Attributes:
        record: record with these turns and their messages alone, after the prompt.
        first: number of the first of these turns, from 1.
        total: number of turns of the episode.
        long: True if no page reads the whole record, see `LONG`.
    """

    record: EpisodeRecord
    behaviors: list[list[str]]
    first: int
    total: int
    long: bool = False

    @property
    def numbers(self) -> range:
        """Numbers of the turns, from 1."""
        return range(self.first, self.first + len(self.record["turns"]))

    @property
    def whole(self) -> bool:
        """True if these are all turns of the episode."""
        return len(self.record["turns"]) == self.total


def read_part(index: RecordIndex, episode: int, turn: int = 1) -> EpisodePart:
    """Read the part of an episode that has a turn; the last part if the episode has no such turn."""
    head = index.db.execute(
        "SELECT record, turns, length FROM heads JOIN episodes ON id = episode WHERE episode = ?", (episode,)
    ).fetchone()
    if head is None:
        return first_part(index.read(episode))
    number = min(max(turn, 1), head["turns"]) - 1
    part = index.db.execute(
        """SELECT path, part, episodes.offset + parts.offset AS offset, parts.length, behaviors
        FROM parts JOIN episodes ON episodes.id = episode JOIN files ON files.id = file
        WHERE episode = ? AND part = ?""",
        (episode, number // PART),
    ).fetchone()
    record = json.loads(head["record"])
    try:
        with stored_path(part).open("rb") as file:
            file.seek(part["offset"])
            record["turns"] = json.loads(b"[" + file.read(part["length"]) + b"]")
        record["messages"] += [message for turn in record["turns"] for message in _messages(turn)]
        record = parse_record(record)
    except (OSError, ValueError, KeyError, TypeError, ConfigError) as error:
        raise ConfigError(f"Episode {episode} is no longer where it was in {stored_path(part)}: {error}") from error
    behaviors = _by_turn(json.loads(part["behaviors"]), len(record["turns"]))
    return EpisodePart(record, behaviors, part["part"] * PART + 1, head["turns"], head["length"] > LONG)


def first_part(record: EpisodeRecord) -> EpisodePart:
    """Return the first turns of an episode that has been read."""
    shown = record["turns"][:PART]
    return EpisodePart(
        {**record, "turns": shown}, _by_turn(behavior_turns(record), len(shown)), 1, len(record["turns"])
    )


def _messages(turn: dict[str, str]) -> list[Message]:
    reply: list[Message] = [{"role": "assistant", "content": turn["reply"]}]
    return reply if turn["observation"] is None else [*reply, {"role": "user", "content": turn["observation"]}]


def _by_turn(behaviors: dict[str, list[int]], turns: int) -> list[list[str]]:
    return [[name for name, shown in behaviors.items() if turn in shown] for turn in range(turns)]
