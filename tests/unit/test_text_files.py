"""Files that people write, as other editors and shells save them: a byte-order mark is left out, Latin-1 is refused."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from env_adapters.mcp.tasks import read_tasks as read_mcp_tasks
from verl_agent.envs.judge.settings import read_rubric
from verl_agent.envs.program.task_file import read_tasks
from verl_agent.errors import ConfigError
from verl_agent.json_lines import json_lines
from verl_agent.results.judge_agreement import read_labels


def labels(file: Path) -> Any:
    return read_labels(file.rename(file.with_suffix(".csv")))


READERS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "rubric": (lambda file: read_rubric(str(file)), "question: Wie gut?"),
    "labels": (labels, "task,label\nTür,1\n"),
    "tasks of a program": (read_tasks, json.dumps({"id": "Tür", "split": "train"}, ensure_ascii=False)),
    "tasks of MCP": (
        lambda file: read_mcp_tasks(file, "check", (0, sys.maxsize)),
        json.dumps({"id": "Tür", "prompt": "Öffne.", "split": "train"}, ensure_ascii=False),
    ),
    "JSON lines": (lambda file: list(json_lines(file)), json.dumps({"a": "ü"}, ensure_ascii=False) + "\n"),
}


@pytest.mark.parametrize("kind", READERS)
def test_a_byte_order_mark_is_left_out(tmp_path, kind):
    read, text = READERS[kind]
    plain, marked = tmp_path / "a", tmp_path / "b"
    plain.write_text(text, encoding="utf-8")
    marked.write_text(text, encoding="utf-8-sig")
    assert read(marked) == read(plain)


@pytest.mark.parametrize("kind", sorted(READERS.keys() - {"rubric"}))
def test_another_encoding_is_refused_with_the_name_of_the_file(tmp_path, kind):
    read, text = READERS[kind]
    (tmp_path / "other").write_text(text, encoding="latin-1")
    with pytest.raises(ConfigError, match=r"other.*(?i:utf-8|unicode)"):
        read(tmp_path / "other")
