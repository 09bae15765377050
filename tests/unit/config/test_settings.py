"""Tests of live environments: made once, with tasks that are listed once."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from verl_agent.config.settings import read_env
from verl_agent.errors import ConfigError

COUNTED = """
from env_adapters.guess_number.adapter import GuessNumber

calls = []

class Counted(GuessNumber):
    def __init__(self):
        super().__init__()
        calls.append("made")

    def tasks(self, split):
        calls.append(split)
        return super().tasks(split)
"""


@pytest.fixture
def calls(tmp_path: Path) -> Iterator[list[str]]:
    """Register an environment that notes when it is made and when its tasks are listed; yield its notes."""
    metadata = tmp_path / "noting_env-1.0.dist-info"
    metadata.mkdir()
    metadata.joinpath("METADATA").write_text("Metadata-Version: 2.1\nName: noting-env\nVersion: 1.0\n")
    metadata.joinpath("entry_points.txt").write_text("[verl_agent.envs]\nnoting = noting_env:Counted\n")
    tmp_path.joinpath("noting_env.py").write_text(COUNTED)
    sys.path.insert(0, str(tmp_path))
    import noting_env  # type: ignore[import-not-found]

    yield noting_env.calls
    sys.path.remove(str(tmp_path))
    sys.modules.pop("noting_env", None)


def config(**agent: Any) -> dict[str, Any]:
    return {"env": {"name": "noting"}, "agent": {"name": "act", **agent}}


def test_environment_is_made_once_and_each_source_is_listed_once(calls, tmp_path):
    played, ids = read_env(config()), tmp_path / "ids.txt"
    assert calls == [], "reading the settings of a record needs no environment"
    ids.write_text(played.tasks("small_train")[0].id)
    agents = [played.new_agent(), played.new_agent()]
    assert agents[0] is not agents[1], "each episode has its own agent"
    assert [len(played.tasks(source)) for source in ("small_train", str(ids), "small_train", str(ids))] == [
        51,
        1,
        51,
        1,
    ]
    assert calls == ["made", "small_train", *played.live.splits]


def test_a_caller_that_changes_its_tasks_changes_no_others(calls):
    played = read_env(config())
    played.tasks("small_train").clear()
    assert len(played.tasks("small_train")) == 51


def test_an_invalid_agent_raises_config_error_where_it_is_needed(calls):
    played = read_env(config(options={"turns_lef": True}))
    with pytest.raises(ConfigError, match=r"^agent\.options\.turns_lef is not an option of 'act'"):
        played.new_agent()
