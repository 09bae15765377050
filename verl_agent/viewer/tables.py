"""Tables of the index, and the row that a record becomes."""

import json
import zlib
from typing import Any

from verl_agent.trace import frame
from verl_agent.trace.labels import KEY_FIELDS
from verl_agent.trace.record import EpisodeRecord
from verl_agent.trace.turn_record import turn_text
from verl_agent.viewer.summaries import RULES, SUMMARY_TABLES

_SQL = {str: "TEXT", int: "INTEGER", float: "REAL", bool: "INTEGER"}
_OF_FRAME = {name: kind for name, kind in frame.COLUMNS.items() if name != "env_label"}
COLUMNS = (*((name, _SQL[kind]) for name, kind in _OF_FRAME.items()), ("actions", "TEXT"))
"""Columns of an episode with their type; `env` is the label of the environment in the run, `actions` a JSON list of the
actions by turn."""
_KEY = ", ".join(f'"{name}"' for name in KEY_FIELDS)
LABEL_OF_EPISODE = " AND ".join(f'labels."{name}" = episodes."{name}"' for name in KEY_FIELDS)
"""Condition in SQL that a label belongs to an episode."""
_TYPED_COLUMNS = ", ".join(f'"{name}" {kind}' for name, kind in COLUMNS)

MAX_WORDS = 2_000_000
"""Most characters of an episode in the full-text table."""

ORDER = ("step", "env", "task", '"group"', "sample")
"""Columns of the order of episodes unless another one is chosen. Attempts at one stand in the order of their file."""

TABLES = (
    "CREATE TABLE files (id INTEGER PRIMARY KEY, path BLOB UNIQUE, inode INTEGER, head BLOB, indexed INTEGER)",
    "CREATE TABLE bad_lines (file INTEGER, offset INTEGER, message TEXT)",
    "CREATE TABLE episodes (id INTEGER PRIMARY KEY AUTOINCREMENT, file INTEGER, offset INTEGER, length INTEGER, "
    f"replaced INTEGER DEFAULT 0, retried INTEGER DEFAULT 0, {_TYPED_COLUMNS})",
    "CREATE INDEX by_step ON episodes (purpose, step, started_at, replaced)",
    "CREATE INDEX by_task ON episodes (env, task, step)",
    'CREATE INDEX by_group ON episodes ("group", step, sample, attempt)',
    "CREATE INDEX by_file ON episodes (file, offset)",
    f"CREATE INDEX by_order ON episodes ({', '.join(ORDER)})",
    # Without a copy of the text, which is read from the records. Such a table cannot delete before SQLite 3.43: ids of
    # episodes are never used twice, so words of a deleted episode match nothing.
    "CREATE VIRTUAL TABLE words USING fts5 (text, content='')",
    # Bytes of new words that are kept in memory. A larger number writes fewer parts, which would be merged later.
    "INSERT INTO words (words, rank) VALUES ('hashsize', 33554432)",
    "INSERT INTO words (words, rank) VALUES ('automerge', 16)",  # merges half as often
    f"CREATE TABLE labels ({_KEY}, tags TEXT, note TEXT)",
    "CREATE TABLE heads (episode INTEGER PRIMARY KEY, fingerprint TEXT, record TEXT)",
    "CREATE TABLE parts (episode INTEGER, part INTEGER, offset INTEGER, length INTEGER, behaviors TEXT, "
    "PRIMARY KEY (episode, part)) WITHOUT ROWID",
    *SUMMARY_TABLES,
)
"""Statements that create the tables. `indexed` is the number of bytes of a file that were read. `tags` separates and
surrounds tags by spaces. `replaced` is 1 for an episode of a step or group that the run played again after a resume,
`retried` for an attempt that a later one followed. `heads` and `parts` have the episodes that pages show in parts,
see `verl_agent.viewer.parts`. `path` has bytes as `os.fsencode` returns them: names of files need not be UTF-8."""
INDEX_VERSION = zlib.crc32("\n".join((*TABLES, *RULES)).encode()) & 0x7FFFFFFF
"""Version of the tables and of their content, a checksum of `TABLES` and `RULES`. An index of another version is
deleted and built anew."""


_NAMES = ", ".join(f'"{name}"' for name, _ in COLUMNS)
INSERT_EPISODE = f"INSERT INTO episodes (file, offset, length, {_NAMES}) VALUES ({', '.join('?' * (len(COLUMNS) + 3))})"
"""Statement that adds an episode: file, offset, length and the values of `row_of`."""


def row_of(record: EpisodeRecord) -> list[Any]:
    """Return the values of `COLUMNS` for a record."""
    row = frame.episode_row(record)
    row["env"] = row["env_label"]
    actions = json.dumps([turn_text(turn) for turn in record["turns"]])
    return [*(storable(row[name]) for name in _OF_FRAME), actions]


def storable(value: Any) -> Any:
    """Return a value that SQLite takes: half of a surrogate pair, which UTF-8 cannot hold, becomes a question mark."""
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) and not value.isascii() else value


def searched_text(record: EpisodeRecord) -> str:
    """Return each text of an episode once: error, prompt but its system messages, replies, observations.

    Of a long episode, the first `MAX_WORDS` characters are searched.
    """
    prompt = record["messages"][: record["prompt_length"]]
    texts = [record["error"], *(message["content"] for message in prompt if message["role"] != "system")]
    length = sum(map(len, texts))
    for turn in record["turns"]:
        if length > MAX_WORDS:
            break
        texts += [turn["reply"], turn["observation"] or ""]
        length += len(texts[-2]) + len(texts[-1])
    return str(storable("\n".join(texts)[:MAX_WORDS]))
