"""Environments are found by name, and a wrong name is answered with what to write instead."""

import asyncio
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from env_adapters.guess_number.adapter import GuessNumber
from env_adapters.textcraft.adapter import TextCraft
from verl_agent.envs.base import EnvAdapter
from verl_agent.envs.registry import list_tasks, load_adapter, make_env
from verl_agent.errors import ConfigError

OTHER_ENVIRONMENTS = """
[verl_agent.envs]
other_absent = a_module_that_is_not_installed:Env
other_wrong_kind = collections:OrderedDict
other_empty = other_envs:Empty
other_twice = other_envs:Twice
"""

OTHER_MODULE = """
from verl_agent.envs.base import EnvAdapter
from verl_agent.types import TaskItem


class Empty(EnvAdapter):
    def tasks(self, split):
        return []

    async def reset(self, item): ...

    async def step(self, action): ...


class Twice(Empty):
    def tasks(self, split):
        return [TaskItem("other_twice", "1"), TaskItem("other_twice", "1")]
"""


@pytest.fixture
def other_package(tmp_path: Path):
    """Another installed package that registers environments, some of them broken."""
    metadata = tmp_path / "other_envs-1.0.dist-info"
    metadata.mkdir()
    metadata.joinpath("METADATA").write_text("Metadata-Version: 2.1\nName: other-envs\nVersion: 1.0\n")
    metadata.joinpath("entry_points.txt").write_text(OTHER_ENVIRONMENTS)
    tmp_path.joinpath("other_envs.py").write_text(OTHER_MODULE)
    sys.path.insert(0, str(tmp_path))
    yield
    sys.path.remove(str(tmp_path))
    sys.modules.pop("other_envs", None)


@pytest.mark.parametrize(("name", "adapter"), [("textcraft", TextCraft), ("guess_number", GuessNumber)])
def test_our_environments_are_registered(name, adapter):
    assert load_adapter(name) is adapter


def test_another_package_registers_environments(other_package):
    assert issubclass(load_adapter("other_empty"), EnvAdapter)


def test_a_misspelt_name_is_answered_with_the_right_one():
    with pytest.raises(ConfigError, match=r"env\.name='textcrat' is not registered\. Did you mean 'textcraft'\?"):
        load_adapter("textcrat")


def test_an_unknown_name_is_answered_with_the_known_ones():
    with pytest.raises(ConfigError, match=r"Known: .*guess_number.*textcraft"):
        load_adapter("???")


def test_an_environment_that_does_not_import_says_what_to_install(other_package):
    with pytest.raises(
        ConfigError, match=r"does not import: No module named .*pip install 'verl-agent\[other_absent\]'"
    ):
        load_adapter("other_absent")


def test_what_is_no_adapter_is_refused(other_package):
    with pytest.raises(ConfigError, match="collections:OrderedDict, which is not a subclass of EnvAdapter"):
        load_adapter("other_wrong_kind")


def test_options_configure_an_instance():
    env = make_env("guess_number", {"tolerant": True})
    assert isinstance(env, GuessNumber) and env.tolerant


def test_an_unknown_option_is_answered_with_the_right_one():
    with pytest.raises(ConfigError, match=r"env\.options\.tolerent is not an option .* Did you mean 'tolerant'\?"):
        make_env("guess_number", {"tolerent": True})


def test_an_environment_without_a_constructor_takes_no_options(other_package):
    with pytest.raises(ConfigError, match=r"env\.options\.colour is not an option of 'other_empty'"):
        make_env("other_empty", {"colour": "red"})


@pytest.mark.parametrize("copy", [lambda env: env.new_session(), lambda env: pickle.loads(pickle.dumps(env))])
def test_new_sessions_and_pickles_keep_the_options_and_nothing_else(copy):
    env = GuessNumber(tolerant=True)
    asyncio.run(env.reset(env.tasks("train")[0]))
    again = copy(env)
    assert again is not env and again.tolerant
    assert not hasattr(again, "target")


def test_tasks_are_listed_by_id():
    items = list_tasks("guess_number", "train")
    assert (len(items), items["100:1"].data["target"]) == (390, 1)


def test_a_misspelt_split_is_answered_with_the_right_one():
    with pytest.raises(ConfigError, match=r"no split 'trian'\. Did you mean 'train'\?"):
        list_tasks("guess_number", "trian")


def test_a_split_without_tasks_is_refused(other_package):
    with pytest.raises(ConfigError, match="lists no tasks for split 'train'"):
        list_tasks("other_empty", "train")


def test_ids_that_occur_twice_are_refused(other_package):
    with pytest.raises(ConfigError, match="lists 1 task ids twice in split 'train'"):
        list_tasks("other_twice", "train")


def test_the_command_lists_what_is_installed():
    said = subprocess.check_output(
        [sys.executable, "-c", "from verl_agent.commands.cli import app; app()", "envs"],
        text=True,
        env={"COLUMNS": "200"},
    )
    assert "small_train, small_test" in next(line for line in said.splitlines() if "guess_number" in line)
