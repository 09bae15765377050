"""Episode records as tables: one row an episode or a turn for pandas, whole records for Parquet."""

import json
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from verl_agent.actions import action_text
from verl_agent.errors import ConfigError
from verl_agent.trace.behaviors import BEHAVIORS, Played, mean_thought_length, turns_with_behaviors
from verl_agent.trace.record import EpisodeRecord, env_label, is_operated

if TYPE_CHECKING:
    import pandas

HEADER: dict[str, type] = {
    "purpose": str,
    "env": str,
    "task": str,
    "category": str,
    "split": str,
    "step": int,
    "group": str,
    "sample": int,
    "attempt": int,
    "model": str,
    "started_at": str,
    "seconds": float,
    "max_turns": int,
    "reward": float,
    "success": bool,
    "stop": str,
    "error": str,
}
"""Columns that are fields of the record, with their type."""
COMPUTED: dict[str, type] = {
    "env_label": str,
    "shaped_return": float,
    "turns": int,
    "tokens": int,
    "generate_s": float,
    "env_s": float,
    "thought_length": float,
    "oracle_turns": int,
    "operated": bool,
}
"""Columns that are computed from the record, with their type."""
OPTIONAL = ("shaped_return", "oracle_turns")
"""Columns that may be missing."""
COLUMNS: dict[str, type] = {**HEADER, **COMPUTED, **{behavior.name: int for behavior in BEHAVIORS}}
"""Columns of an episode. That of a behavior is the number of its turns."""
_JSON = ("info", "media", "usage", "review", "calls")
"""Fields of a turn that are JSON in Parquet."""
_RECORD_JSON = ("data", "replays", "judgements", "unknown")
"""Fields of a record that are JSON in Parquet."""
_PARQUET_ROWS = 500
"""Records that are held in memory while Parquet is written."""


def episode_row(record: EpisodeRecord) -> dict[str, Any]:
    """Return the values of `COLUMNS` for a record."""
    turns, fields = record["turns"], dict(record)
    played = Played.from_record(record)
    behaviors = turns_with_behaviors(played)
    return {
        **{name: fields[name] for name in HEADER},
        "env_label": env_label(record),
        "shaped_return": record.get("shaped_return"),
        "turns": len(turns),
        "tokens": sum(turn["tokens"] for turn in turns),
        "generate_s": sum(turn["generate_s"] for turn in turns),
        "env_s": sum(turn["env_s"] for turn in turns),
        "thought_length": mean_thought_length(played),
        "oracle_turns": record.get("oracle_turns"),
        "operated": is_operated(record),
        **{behavior.name: len(behaviors.get(behavior.name, ())) for behavior in BEHAVIORS},
    }


def turn_rows(record: EpisodeRecord) -> Iterator[dict[str, Any]]:
    """Yield one row for each turn: the position of the episode, the fields of the turn, and `info/<key>`."""
    names = ("purpose", "env", "task", "step", "group", "sample", "attempt")
    position = {**{name: dict(record)[name] for name in names}, "env_label": env_label(record)}
    for number, turn in enumerate(record["turns"], start=1):
        fields = {name: value for name, value in turn.items() if name != "info"}
        yield {**position, "turn": number, **fields, **{f"info/{key}": value for key, value in turn["info"].items()}}


def make_frame(records: Iterable[EpisodeRecord], turns: bool = False) -> "pandas.DataFrame":
    """Return a pandas frame with one row an episode, or one a turn.

    Args:
        turns: True for the rows of `turn_rows` instead of those of `episode_row`.
    """
    import pandas

    if turns:
        return pandas.DataFrame([row for record in records for row in turn_rows(record)])
    return pandas.DataFrame(map(episode_row, records), columns=list(COLUMNS))


def write_parquet(records: Iterable[EpisodeRecord], path: Path | str) -> int:
    """Write whole records to a Parquet file: the columns of `episode_row`, and the lists `steps` and `messages`.

    Nested fields are JSON, such as `data` and `judgements`, and `info` and `review` of a step; an action is text.

    Returns:
        Number of records.

    Raises:
        ConfigError: the package pyarrow is not installed.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"Parquet needs the package {error.name}. Install it: pip install 'verl-agent[eval]'"
        ) from error
    schema = _schema(pyarrow)
    count, left = 0, iter(records)
    with parquet.ParquetWriter(path, schema, compression="zstd") as writer:
        while part := [_nested(_encodable(record)) for record in islice(left, _PARQUET_ROWS)]:
            writer.write_table(pyarrow.Table.from_pylist(part, schema=schema))
            count += len(part)
    return count


def _encodable(record: EpisodeRecord) -> EpisodeRecord:
    """Return the record with a question mark for each half of a surrogate pair, which UTF-8 cannot hold."""
    text = json.dumps(record, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        return cast(EpisodeRecord, json.loads(text.encode(errors="replace")))
    return record


def _nested(record: EpisodeRecord) -> dict[str, Any]:
    steps = [
        {
            **turn,
            "action": action_text(turn["action"]),
            **{name: json.dumps(value) for name, value in turn.items() if name in _JSON},
        }
        for turn in record["turns"]
    ]
    nested = {name: json.dumps(value) for name, value in record.items() if name in _RECORD_JSON}
    return {"given_turns": 0, **record, **episode_row(record), **nested, "steps": steps}


def _schema(pyarrow: Any) -> Any:
    types = {str: pyarrow.string(), int: pyarrow.int64(), float: pyarrow.float64(), bool: pyarrow.bool_()}
    texts = ("reply", "action", "truncated_by", "observation", "author", "proposed", *_JSON)
    numbers = ("reward", "generate_s", "env_s")
    step = pyarrow.struct([
        *((name, types[str]) for name in texts),
        ("tokens", types[int]),
        *((name, types[float]) for name in numbers),
        *((name, types[bool]) for name in ("terminated", "force_closed", "rewritten")),
    ])  # fmt: skip
    texts_list = pyarrow.list_(types[str])
    limits = pyarrow.struct([("max_tokens", types[int]), ("stop", texts_list)])
    message = pyarrow.struct([
        *((name, types[str]) for name in ("role", "content")),
        ("answers", texts_list),
        ("limits", limits),
    ])  # fmt: skip
    return pyarrow.schema([
        *((name, types[kind]) for name, kind in COLUMNS.items()),
        ("success_reward", types[float]),
        *((name, types[int]) for name in ("version", "prompt_length", "given_turns")),
        ("steps", pyarrow.list_(step)),
        ("messages", pyarrow.list_(message)),
        *((name, types[str]) for name in _RECORD_JSON),
    ])  # fmt: skip
