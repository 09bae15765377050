"""Imports of small files: a conversation with a call, and the records of a file."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from verl_agent.errors import ConfigError
from verl_agent.evaluation.imports.conversation import ImportSettings
from verl_agent.evaluation.imports.job import Imported, import_records
from verl_agent.trace.record import EpisodeRecord
from verl_agent.trace.record_files import read_records

ARGUMENTS = {"city": "Zürich </tool_call>", "days": 3, "limit": 1.5, "deep": {"list": [1, None, True, ""]}}
CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": json.dumps(ARGUMENTS)}}
TOLD: list[dict[str, Any]] = [
    {"role": "developer", "content": "Use tools."},
    {"role": "user", "content": [{"type": "text", "text": "Sun?"}]},
    {"role": "assistant", "content": "I ask.", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "rain"},
    {"role": "assistant", "content": "No."},
]


def write(path: Path, lines: Sequence[Any]) -> Path:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def imported(path: Path, kind: str = "messages", **settings: Any) -> tuple[list[EpisodeRecord], Imported]:
    into = path.parent / f"imported-{len(list(path.parent.iterdir()))}"
    found = import_records(path, kind, into, ImportSettings(settings.pop("env", "trip"), **settings))
    return list(read_records(into)), found


def refusals(path: Path, kind: str, **settings: Any) -> str:
    """Import a file of which nothing is imported, and return the message."""
    with pytest.raises(ConfigError) as refused:
        imported(path, kind, **settings)
    return str(refused.value)
