"""Claim of a folder: recorded settings, settings that may change, older records, and the lock."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from verl_agent.errors import ConfigError
from verl_agent.runs.identity import claim, differences, read_settings, task_ids, write_json_atomically
from verl_agent.runs.may_change import REINFORCEMENT as RL_MAY_CHANGE
from verl_agent.types import TaskItem

HOLD = """
import sys, time
from pathlib import Path
from verl_agent.runs.identity import lock
lock(Path(sys.argv[1]))
print("locked", flush=True)
time.sleep(60)
"""


def claimed(folder: Path, may_change: tuple[str, ...] = (), **settings: object) -> None:
    claim(folder, settings, may_change, contents="another run", advice="Choose another folder.")


def test_equal_settings_are_accepted_and_recorded(tmp_path):
    claimed(tmp_path / "new", env={"name": "toy"}, model="m")
    claimed(tmp_path / "new", env={"name": "toy"}, model="m")
    assert read_settings(tmp_path / "new") == {"env": {"name": "toy"}, "model": "m"}


def test_a_changed_setting_raises_config_error_naming_the_key(tmp_path):
    claimed(tmp_path, env={"name": "toy", "options": {}}, model="m")
    with pytest.raises(ConfigError, match=r"another run: env.name was 'toy', is now 'maze'; model was 'm'"):
        claimed(tmp_path, env={"name": "maze", "options": {}}, model="n")
    assert read_settings(tmp_path)["model"] == "m"


def test_settings_that_may_change_are_not_recorded(tmp_path):
    patterns = ("trainer.log*", "*.profiler")
    claimed(tmp_path, patterns, trainer={"logger": ["file"], "seed": 1}, actor={"profiler": {"enable": False}})
    claimed(tmp_path, patterns, trainer={"logger": ["wandb"], "seed": 1}, actor={"profiler": {"enable": True}})
    assert read_settings(tmp_path) == {"trainer": {"seed": 1}, "actor": {}}


def test_a_setting_that_an_older_version_did_not_have_is_accepted(tmp_path):
    claimed(tmp_path, actor={"lr": 0.1})
    claimed(tmp_path, actor={"lr": 0.1, "clip_ratio": 0.2})
    with pytest.raises(ConfigError, match=r"actor.clip_ratio was 0.2, is now 0.3"):
        claimed(tmp_path, actor={"lr": 0.1, "clip_ratio": 0.3})


@pytest.mark.parametrize(("was", "now"), [({}, {"size": 3}), ({"size": 3}, {}), ({"size": 3}, {"size": 4})])
def test_a_new_or_removed_option_is_a_difference(was, now):
    changed = list(differences({"env": {"options": was}}, {"env": {"options": now}}))
    assert changed == [("env.options.size", was.get("size"), now.get("size"))]


def test_a_section_in_place_of_null_is_a_difference():
    assert list(differences({"adaptive": None}, {"adaptive": {"window": 2}})) == [("adaptive", None, {"window": 2})]


def test_flat_records_of_older_versions_are_compared_key_by_key(tmp_path):
    old = {
        "command": "train",
        "env.name": "toy",
        "episode.cut_turn": "stop",
        "agent": {"name": "react"},
        "ids of env.train_tasks": "0123",
    }
    (tmp_path / "run.json").write_text(json.dumps(old))
    now = {
        "command": "train",
        "env": {"name": "toy", "retries": 2},
        "episode": {"on_truncated_turn": "stop"},
        "agent": {"name": "react", "options": {}},
        "ids of env.train_tasks": "0123",
        "data": {"seed": 1},
    }
    with pytest.raises(ConfigError, match=r"episode.on_truncated_turn was 'stop', is now 'play'"):
        claimed(tmp_path, **{**now, "episode": {"on_truncated_turn": "play"}})
    with pytest.raises(ConfigError, match=r"ids of env.train_tasks was"):
        claimed(tmp_path, **{**now, "ids of env.train_tasks": "4567"})
    claimed(tmp_path, **now)
    assert read_settings(tmp_path) == now


@pytest.mark.parametrize(
    "key",
    [
        "algorithm.adv_estimator",
        "algorithm.kl_ctrl.kl_coef",
        "actor_rollout_ref.actor.optim.lr",
        "actor_rollout_ref.actor.clip_ratio_c",
        "actor_rollout_ref.rollout.n",
        "critic.cliprange_value",
        "data.train_batch_size",
        "env.options.size",
        "env.train_tasks",
        "horizon.max_turns",
        "a_section_of_the_future.key",
    ],
)
def test_settings_of_rl_are_protected_by_default(tmp_path, key):
    def nested(value: object) -> dict[str, object]:
        for name in reversed(key.split(".")):
            value = {name: value}
        return dict(value)  # type: ignore[call-overload]

    claimed(tmp_path, RL_MAY_CHANGE, **nested(1))
    with pytest.raises(ConfigError, match=f"{key} was 1, is now 2"):
        claimed(tmp_path, RL_MAY_CHANGE, **nested(2))


def test_the_hash_of_tasks_depends_on_their_ids():
    tasks = [TaskItem("toy", "a"), TaskItem("toy", "b")]
    assert task_ids(tasks) == task_ids(list(tasks)) != task_ids(tasks[:1])


def test_writing_json_replaces_the_file_and_leaves_no_draft(tmp_path):
    write_json_atomically(tmp_path / "a.json", {"step": 1})
    write_json_atomically(tmp_path / "a.json", {"step": 2})
    assert json.loads((tmp_path / "a.json").read_text()) == {"step": 2}
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def hold(folder: Path) -> "subprocess.Popen[str]":
    """Start a process that holds a folder until it is killed."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(folder)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "locked\n"
    return process


def test_a_folder_in_use_raises_config_error_naming_its_process(tmp_path):
    process = hold(tmp_path)
    try:
        with pytest.raises(ConfigError, match=rf"{tmp_path} is in use by process {process.pid} on \S+, started"):
            claimed(tmp_path, model="m")
        assert not (tmp_path / "run.json").exists()
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    claimed(tmp_path, model="m")


def test_ranks_of_one_run_share_the_lock(tmp_path):
    process = hold(tmp_path)
    try:
        command = [sys.executable, "-c", HOLD.replace("time.sleep(60)", ""), str(tmp_path)]
        rank = subprocess.run(command, env={**os.environ, "RANK": "1"}, capture_output=True, text=True)
        assert rank.stdout == "locked\n"
    finally:
        process.kill()
        process.communicate()
