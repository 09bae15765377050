"""The registry: loading environments by name, their options, and the errors of wrong names and broken packages."""

import asyncio
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import pytest
from typer.testing import CliRunner

from env_adapters.guess_number.adapter import GuessNumber
from env_adapters.textcraft.adapter import TextCraft
from tests.support.fakes import Talk
from verl_agent.commands.cli import app
from verl_agent.envs.base import EnvAdapter
from verl_agent.envs.registry import list_tasks, load_adapter, make_env
from verl_agent.errors import ConfigError
from verl_agent.types import TaskItem

OTHER_ENVIRONMENTS = """
[verl_agent.envs]
other_absent = a_module_that_is_not_installed:Env
other_misspelt = other_envs:Emty
other_broken = broken_envs:Broken
other_unparsable = unparsable_envs:Env
other_careless = other_envs:Careless
other_needy = other_envs:Needy
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


class Careless(Empty):
    def __init__(self, size=1):
        self.size = 10 / size

    def tasks(self, split):
        return [][0]


class Needy(Empty):
    def __init__(self, size, *, sites):
        self.size, self.sites = size, sites
"""


class Crawler(GuessNumber):
    """Adapter that changes a nested option."""

    def __init__(self, sites: dict[str, list[str]]) -> None:
        super().__init__()
        self.sites = sites
        self.sites["home"].append("/")


BROKEN_MODULE = """
from verl_agent.envs.base import EnvAdapter

import a_package_that_is_not_installed
"""


@pytest.fixture
def other_package(tmp_path: Path):
    """Another installed package that registers environments; some are broken."""
    metadata = tmp_path / "other_envs-1.0.dist-info"
    metadata.mkdir()
    metadata.joinpath("METADATA").write_text("Metadata-Version: 2.1\nName: other-envs\nVersion: 1.0\n")
    metadata.joinpath("entry_points.txt").write_text(OTHER_ENVIRONMENTS)
    tmp_path.joinpath("other_envs.py").write_text(OTHER_MODULE)
    tmp_path.joinpath("broken_envs.py").write_text(BROKEN_MODULE)
    tmp_path.joinpath("unparsable_envs.py").write_text("def step(:\n")
    sys.path.insert(0, str(tmp_path))
    yield
    sys.path.remove(str(tmp_path))
    sys.modules.pop("other_envs", None)


@pytest.mark.parametrize(("name", "adapter"), [("textcraft", TextCraft), ("guess_number", GuessNumber)])
def test_the_environments_of_this_package_are_registered(name, adapter):
    assert load_adapter(name) is adapter


def test_another_package_registers_environments(other_package):
    assert issubclass(load_adapter("other_empty"), EnvAdapter)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("textcrat", r"env\.name='textcrat' is not registered\. Did you mean 'textcraft'\?"),
        ("???", r"Known: .*guess_number.*textcraft.*`pip install -e \.` in its folder"),
    ],
)
def test_an_unknown_name_suggests_known_ones_and_how_to_install_another(name, message):
    with pytest.raises(ConfigError, match=message):
        load_adapter(name)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("other_absent", "the module a_module_that_is_not_installed does not exist. Correct the entry point"),
        ("other_misspelt", "other_envs.py has no 'Emty'. Did you mean 'Empty'? Correct the entry point"),
        ("other_wrong_kind", "collections:OrderedDict, which is not a subclass of EnvAdapter. Correct the entry point"),
        ("other_broken", "ModuleNotFoundError: No module named 'a_package_that_is_not_installed'"),
        ("other_broken", "/broken_envs.py:4)"),
        ("other_unparsable", "/unparsable_envs.py:1)"),
    ],
)
def test_an_entry_point_that_names_no_adapter_raises_config_error(other_package, name, message):
    with pytest.raises(ConfigError) as error:
        load_adapter(name)
    assert message in str(error.value)
    assert "verl-agent[" not in str(error.value)


def test_a_missing_package_of_this_projects_own_environment_names_the_extra(tmp_path: Path):
    """In a process of its own, where the package does not exist."""
    code = (
        "import sys; sys.modules['numpy'] = None\n"
        "from verl_agent.envs.registry import load_adapter\n"
        "try: load_adapter('deepsearch')\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    printed = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert printed.startswith("ConfigError env.name='deepsearch'")
    assert "the package numpy is not installed. Install what it needs: pip install 'verl-agent[deepsearch]'." in printed


def test_an_exception_of_the_constructor_names_file_and_line(other_package):
    with pytest.raises(ConfigError, match=r"env\.options of 'other_careless': ZeroDivisionError: .*_envs\.py:22\)"):
        make_env("other_careless", {"size": 0})


def test_options_configure_an_instance():
    env = make_env("guess_number", {"tolerant": True})
    assert isinstance(env, GuessNumber) and env.tolerant


@pytest.mark.parametrize(
    ("name", "option", "message"),
    [
        ("guess_number", "tolerent", r"env\.options\.tolerent is not an option .* Did you mean 'tolerant'\?"),
        ("other_empty", "colour", r"env\.options\.colour is not an option of 'other_empty'"),
    ],
)
def test_an_unknown_option_raises_config_error(other_package, name, option, message):
    with pytest.raises(ConfigError, match=message):
        make_env(name, {option: True})


def test_missing_options_are_named_with_the_override_that_sets_them(other_package):
    with pytest.raises(ConfigError) as error:
        make_env("other_needy")
    assert str(error.value) == (
        "env 'other_needy' needs env.options.size and env.options.sites. "
        "Set env.options.size=VALUE env.options.sites=VALUE."
    )


@pytest.mark.parametrize("copy", [lambda env: env.new_session(), lambda env: pickle.loads(pickle.dumps(env))])
def test_an_adapter_that_changes_an_option_changes_no_other_session(copy):
    env = Crawler(sites={"home": []})
    assert [copy(env).sites, copy(env).sites, copy(env).new_session().sites] == [{"home": ["/"]}] * 3


@pytest.mark.parametrize("copy", [lambda env: env.new_session(), lambda env: pickle.loads(pickle.dumps(env))])
def test_new_sessions_and_pickles_keep_the_options_and_nothing_else(copy):
    env = GuessNumber(tolerant=True)
    asyncio.run(env.reset(env.tasks("train")[0]))
    again = copy(env)
    assert again is not env and again.tolerant
    assert not hasattr(again, "target")


def test_list_tasks_returns_items_by_id():
    items = list_tasks(make_env("guess_number"), "train")
    assert (len(items), items["100:1"].data["target"]) == (390, 1)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("other_empty", "lists no tasks for split 'train'"),
        ("other_twice", "lists 1 task ids more than once in split 'train'"),
        ("other_careless", r"does not list the tasks of 'train': IndexError: .*other_envs\.py:25\)"),
    ],
)
def test_a_split_without_valid_tasks_raises_config_error(other_package, name, message):
    with pytest.raises(ConfigError, match=message):
        list_tasks(make_env(name), "train")


class Listing(Talk):
    """Environment that lists one item."""

    made: ClassVar[list[Talk]] = []
    item: ClassVar[Any] = None

    def tasks(self, split: str) -> list[Any]:
        return [type(self).item]


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (("talk", "1"), r"\('talk', '1'\) in split 'train'. Allowed: a TaskItem."),
        (TaskItem("talk", 7), r"id=7 in split 'train'. Allowed: a text that is not empty. Use str\(...\)."),
        (TaskItem("talk", None), r"id=None .*str\("),
        (TaskItem("talk", ["1"]), r"id=\['1'\] .*str\("),
        (TaskItem("talk", ""), "id='' .*not empty"),
        (TaskItem("talk", "a\ud800"), r"id='a\\ud800' .*surrogate"),
        (TaskItem("talk", "1", category=2), r"'1' with category=2 .*Allowed: a text. Use str\(...\)."),
    ],
)
def test_an_item_without_a_text_as_id_and_category_is_refused(item, message):
    env = type("Listing", (Listing,), {"item": item})()
    with pytest.raises(ConfigError, match=f"Listing lists .*{message}"):
        list_tasks(env, "train")


def test_the_command_envs_lists_the_installed_environments():
    printed = subprocess.check_output(
        [sys.executable, "-c", "from verl_agent.commands.cli import app; app()", "envs"],
        text=True,
        env={"COLUMNS": "200"},
    )
    assert "small_train, small_test" in next(line for line in printed.splitlines() if "guess_number" in line)


def test_the_command_envs_with_an_unknown_name_fails():
    result = CliRunner().invoke(app, ["envs", "gess_number"])
    assert result.exit_code == 2
    assert "env.name='gess_number' is not registered. Did you mean 'guess_number'?" in result.output
