"""Tables of the index, and the row that a record becomes."""

import json
import zlib
from typing import Any

from verl_agent.trace.behaviors import BEHAVIORS, behavior_turns, thought_length
from verl_agent.trace.record import EpisodeRecord

HEADER = (
    ("purpose", "TEXT"),
    ("env", "TEXT"),
    ("task", "TEXT"),
    ("category", "TEXT"),
    ("split", "TEXT"),
    ("step", "INTEGER"),
    ("group", "TEXT"),
    ("sample", "INTEGER"),
    ("attempt", "INTEGER"),
    ("model", "TEXT"),
    ("started_at", "TEXT"),
    ("seconds", "REAL"),
    ("max_turns", "INTEGER"),
    ("reward", "REAL"),
    ("success", "INTEGER"),
    ("stop", "TEXT"),
    ("error", "TEXT"),
)
"""Columns that are fields of the record, with their type."""
COMPUTED = (
    ("shaped_return", "REAL"),
    ("turns", "INTEGER"),
    ("tokens", "INTEGER"),
    ("generate_s", "REAL"),
    ("env_s", "REAL"),
    ("thought_length", "REAL"),
    ("actions", "TEXT"),
)
"""Columns that are computed from the record, with their type; `actions` is a JSON list of the actions by turn."""
COLUMNS = (*HEADER, *COMPUTED, *((behavior.name, "INTEGER") for behavior in BEHAVIORS))
"""Columns of an episode. That of a behavior is the number of its turns."""
_TYPED_COLUMNS = ", ".join(f'"{name}" {kind}' for name, kind in COLUMNS)

TABLES = (
    "CREATE TABLE files (id INTEGER PRIMARY KEY, path TEXT UNIQUE, inode INTEGER, head BLOB, indexed INTEGER)",
    "CREATE TABLE bad_lines (file INTEGER, offset INTEGER, message TEXT)",
    "CREATE TABLE episodes (id INTEGER PRIMARY KEY AUTOINCREMENT, file INTEGER, offset INTEGER, length INTEGER, "
    f"{_TYPED_COLUMNS})",
    "CREATE INDEX by_step ON episodes (purpose, step)",
    "CREATE INDEX by_task ON episodes (env, task, step)",
    'CREATE INDEX by_group ON episodes ("group", sample)',
    "CREATE INDEX by_file ON episodes (file)",
    # Without a copy of the text, which is read from the records. Such a table cannot delete before SQLite 3.43: ids of
    # episodes are never used twice, so words of a deleted episode match nothing.
    "CREATE VIRTUAL TABLE words USING fts5 (text, content='')",
)
"""Statements that create the tables. `indexed` is the number of bytes of a file that were read."""
INDEX_VERSION = zlib.crc32("\n".join(TABLES).encode()) & 0x7FFFFFFF
"""Version of the tables, a checksum of `TABLES`. An index of another version is deleted and built anew."""


_NAMES = ", ".join(f'"{name}"' for name, _ in COLUMNS)
INSERT_EPISODE = f"INSERT INTO episodes (file, offset, length, {_NAMES}) VALUES ({', '.join('?' * (len(COLUMNS) + 3))})"
"""Statement that adds an episode: file, offset, length and the values of `row_of`."""


def row_of(record: EpisodeRecord) -> list[Any]:
    """Return the values of `COLUMNS` for a record."""
    turns, fields = record["turns"], dict(record)
    behaviors = behavior_turns(record)
    return [
        *(fields[name] for name, _ in HEADER),
        record.get("shaped_return"),
        len(turns),
        sum(turn["tokens"] for turn in turns),
        sum(turn["generate_s"] for turn in turns),
        sum(turn["env_s"] for turn in turns),
        thought_length(record),
        json.dumps([turn["action"] for turn in turns]),
        *(len(behaviors.get(behavior.name, ())) for behavior in BEHAVIORS),
    ]


def words_of(record: EpisodeRecord) -> str:
    """Return each text of an episode once: prompt, replies, observations, error."""
    texts = [message["content"] for message in record["messages"][: record["prompt_length"]]]
    for turn in record["turns"]:
        texts += [turn["reply"], turn["observation"] or ""]
    return "\n".join([*texts, record["error"]])
