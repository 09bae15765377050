"""Claim of a folder: recorded settings, settings that may change, older records, and the lock."""

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

import verl_agent.config.settings
import verl_agent.evaluation.settings
import verl_agent.training.offline.evolve.rounds  # noqa: F401  # these register the settings
from tests.support.cluster_files import refusing
from verl_agent.config.catalogue import may_change
from verl_agent.envs.machine.locks import has_owner_file
from verl_agent.envs.tasks import task_contents, task_ids
from verl_agent.errors import ConfigError
from verl_agent.runs.identity import LOCK_FILE, claim, differences, read_settings
from verl_agent.trace.provenance import write_json_atomically
from verl_agent.types import TaskItem

HOLD = """
import sys, time
from pathlib import Path
from verl_agent.runs.identity import lock
lock(Path(sys.argv[1]))
print("locked", flush=True)
time.sleep(60)
"""


def claimed(folder: Path, patterns: Sequence[str] = (), **settings: object) -> None:
    claim(folder, settings, patterns, contents="another run", advice="Choose another folder.")


def nested(key: str, value: object) -> dict[str, object]:
    """Return nested settings with one value, by its dotted key."""
    for name in reversed(key.split(".")):
        value = {name: value}
    return dict(value)  # type: ignore[call-overload]


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


@pytest.mark.parametrize(
    "section",
    [
        "env.options",
        "learn.env.options",
        "explore.toy.agent.options",
        "horizon.adaptive",
        "horizon.per_task",
        "horizon.replay",
        "critic.optim.override_optimizer_config",
    ],
)
@pytest.mark.parametrize(("was", "now"), [({"a": 1}, {"a": 1, "b": 2}), ({"a": 1, "b": 2}, {"a": 1})])
def test_a_key_that_one_side_lacks_is_a_difference_where_the_recipe_chooses_the_keys(section, was, now):
    changed = list(differences(nested(section, was), nested(section, now)))
    assert changed == [(f"{section}.b", was.get("b"), now.get("b"))]


@pytest.mark.parametrize("section", ["horizon", "env", "learn.optim", "explore.toy.env"])
def test_a_key_that_a_newer_version_added_is_no_difference(section):
    assert list(differences(nested(section, {"a": 1}), nested(section, {"a": 1, "b": 2}))) == []


RL_MAY_CHANGE, EVALUATION = may_change("train"), may_change("eval")
EVOLVE_MAY_CHANGE = (
    *may_change("evolve"),
    *(f"learn.{pattern}" for pattern in may_change("learn")),
    *(f"explore.*.{pattern}" for pattern in may_change("play")),
)


@pytest.mark.parametrize(
    ("patterns", "key"),
    [
        (RL_MAY_CHANGE, "env.options.checkpoint"),
        (RL_MAY_CHANGE, "agent.options.dtype"),
        (RL_MAY_CHANGE, "data.apply_chat_template_kwargs.profiler"),
        (EVOLVE_MAY_CHANGE, "learn.env.options.checkpoint"),
        (EVOLVE_MAY_CHANGE, "explore.toy.env.options.engine"),
    ],
)
def test_patterns_do_not_match_keyword_arguments(tmp_path, patterns, key):
    claimed(tmp_path, patterns, **nested(key, 1))
    with pytest.raises(ConfigError, match=f"{key} was 1, is now 2"):
        claimed(tmp_path, patterns, **nested(key, 2))


@pytest.mark.parametrize(
    ("patterns", "key"),
    [
        (RL_MAY_CHANGE, "actor_rollout_ref.actor.checkpoint.save_contents"),
        (RL_MAY_CHANGE, "actor_rollout_ref.model.override_config.attn_implementation"),
        (RL_MAY_CHANGE, "env.hosts.count"),
        (RL_MAY_CHANGE, "trainer.total_training_steps"),
        (EVALUATION, "evaluation.samples"),
        (EVALUATION, "credit.turn_cost"),
        (EVOLVE_MAY_CHANGE, "learn.model.override_config.attn_implementation"),
        (EVOLVE_MAY_CHANGE, "explore.toy.engine.dtype"),
    ],
)
def test_settings_of_memory_hosts_and_records_may_change(tmp_path, patterns, key):
    claimed(tmp_path, patterns, **nested(key, 1))
    claimed(tmp_path, patterns, **nested(key, 2))


@pytest.mark.parametrize(
    "key",
    [
        "algorithm.adv_estimator",
        "actor_rollout_ref.actor.optim.lr",
        "env.train_tasks",
        "horizon.max_turns",
        "a_section_of_the_future.key",
    ],
)
def test_settings_of_rl_are_protected_by_default(tmp_path, key):
    claimed(tmp_path, RL_MAY_CHANGE, **nested(key, 1))
    with pytest.raises(ConfigError, match=f"{key} was 1, is now 2"):
        claimed(tmp_path, RL_MAY_CHANGE, **nested(key, 2))


def test_the_hash_of_tasks_depends_on_their_ids():
    tasks = [TaskItem("toy", "a"), TaskItem("toy", "b")]
    assert task_ids(tasks) == task_ids(list(tasks)) != task_ids(tasks[:1])


@pytest.mark.parametrize("other", [("b", {"ask": "1"}, "x"), ("a", {"ask": "2"}, "x"), ("a", {"ask": "1"}, "y")])
def test_the_hash_of_the_contents_of_tasks_depends_on_ids_data_and_categories(other):
    contents = task_contents([TaskItem("toy", "a", {"ask": "1"}, "x")])
    assert contents == task_contents([TaskItem("toy", "a", {"ask": "1"}, "x")])
    assert contents != task_contents([TaskItem("toy", *other)])


def test_writing_json_replaces_the_file_and_leaves_no_draft(tmp_path):
    write_json_atomically(tmp_path / "a.json", {"step": 1})
    write_json_atomically(tmp_path / "a.json", {"step": 2})
    assert json.loads((tmp_path / "a.json").read_text()) == {"step": 2}
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def hold(folder: Path, given: Mapping[str, str] | None = None) -> "subprocess.Popen[str]":
    """Start a process that holds a folder until it is killed."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(folder)], stdout=subprocess.PIPE, text=True, env=given)
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


def test_a_command_line_that_is_not_utf_8_holds_a_folder(tmp_path):
    code = "import sys; from pathlib import Path; from verl_agent.runs.identity import lock; lock(Path(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", code, str(tmp_path), b"na\xffme"], check=True)
    assert r"na\udcffme" in (tmp_path / LOCK_FILE).read_text(encoding="utf-8")


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL])
def test_a_folder_without_file_locks_is_held_by_one_run(number, tmp_path):
    given = refusing(tmp_path, "flock fcntl", number)
    process = hold(tmp_path, given)
    second = [sys.executable, "-c", HOLD.replace("time.sleep(60)", ""), str(tmp_path)]
    try:
        refused = subprocess.run(second, env=given, capture_output=True, text=True)
        assert f"{tmp_path} is in use by process {process.pid} on " in refused.stderr and refused.returncode
        assert has_owner_file(tmp_path / LOCK_FILE)
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert subprocess.run(second, env=given, capture_output=True, text=True).stdout == "locked\n"
    assert not (tmp_path / f"{LOCK_FILE}.owner").exists()  # so that another machine need not wait


def test_ranks_of_one_run_share_the_lock(tmp_path):
    process = hold(tmp_path)
    try:
        command = [sys.executable, "-c", HOLD.replace("time.sleep(60)", ""), str(tmp_path)]
        rank = subprocess.run(command, env={**os.environ, "RANK": "1"}, capture_output=True, text=True)
        assert rank.stdout == "locked\n"
    finally:
        process.kill()
        process.communicate()
