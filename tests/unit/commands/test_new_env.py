"""Test that packages of `new-env` and of `examples/` work unchanged outside this repository."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from tests import ROOT
from verl_agent.commands.new_env import write_package
from verl_agent.config.checks import check_keys
from verl_agent.config.search_path import register_config
from verl_agent.errors import ConfigError

BASES = {"eval": "agent_eval", "eval_cpu": "agent_eval", "sft_cpu": "agent_sft"}
"""Base YAML of recipes, by name; all others use `agent_base`."""


def install(source: Path, site: Path) -> dict[str, str]:
    """Install a package into a folder; return environment variables for processes that import it from there."""
    copy = site.with_name("source")
    shutil.copytree(source, copy)  # pip leaves a build folder behind
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, "--target", str(site), str(copy)], check=True, capture_output=True)
    return {**os.environ, "PYTHONPATH": f"{site}:{ROOT}"}


def run(command: Sequence[str], environment: dict[str, str], folder: Path) -> str:
    """Return the output of a command that must succeed."""
    done = subprocess.run(
        [sys.executable, "-m", *command], env=environment, cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


CHECK = "from verl_agent.commands.cli import app; app()"


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_package("traffic_lights", tmp_path_factory.mktemp("author"))


EXAMPLES = [ROOT / "examples" / name for name in ("questions", "workshop")]


@pytest.mark.parametrize("source", ["package", *EXAMPLES], ids=lambda one: getattr(one, "name", one))
def test_packages_keep_the_contract_and_pass_their_own_tests(source, package, tmp_path):
    folder = package if source == "package" else source
    name = folder.name
    environment = install(folder, tmp_path / "site")
    command = [sys.executable, "-c", CHECK, "check-env", name, "--seconds", "2"]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, f"{name} fulfils the contract."), done.stdout
    tests = str(tmp_path / "source" / "tests")
    assert " passed" in run(["pytest", "-q", "-p", "no:cacheprovider", tests], environment, tmp_path)


@pytest.mark.parametrize("name", ["traffic_lights", "x", "a23456789_b23456789_c234567890"])
def test_written_packages_pass_ruff(name, tmp_path):
    folder = write_package(name, tmp_path)
    for command in (["check"], ["format", "--check"]):
        run(["ruff", *command, "--no-cache", "."], dict(os.environ), folder)


@pytest.mark.parametrize("folder", ["package", *EXAMPLES], ids=lambda one: getattr(one, "name", one))
def test_recipes_have_only_known_keys_and_name_their_environment(folder, package):
    folder = package if folder == "package" else folder
    recipes = sorted((folder / "recipes").glob("*.yaml"))
    assert recipes
    for path in recipes:
        register_config()
        with initialize_config_dir(str(path.parent), version_base=None):
            config = compose(path.stem)
        check_keys(config, BASES.get(path.stem, "agent_base"))
        assert config.env.name == folder.name
        assert OmegaConf.to_container(config)["agent"]["name"] in ("act", "react", "notebook", "tools")


def test_placeholders_are_replaced_in_every_file(package):
    texts = [path.read_text() for path in package.rglob("*") if path.is_file()]
    assert len(texts) == 12
    assert not [text for text in texts if "@name@" in text or "@Class@" in text or "@dist@" in text]
    assert "class TrafficLights(EnvAdapter)" in (package / "traffic_lights" / "adapter.py").read_text()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Lamps", "is not allowed as the name of a package. Allowed: lowercase letters"),
        ("class", "is not allowed as the name of a package"),
        ("two__lines", "is not allowed as the name of a package"),
        ("a" * 31, "at most 30"),
        ("textcraft", "is registered already, by verl-agent. Choose another."),
        ("json", "is a Python module already"),
    ],
)
def test_invalid_names_raise_config_errors(name, words, tmp_path):
    with pytest.raises(ConfigError) as refused:
        write_package(name, tmp_path)
    assert words in str(refused.value)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_empty_is_not_changed(tmp_path):
    (tmp_path / "lamps").mkdir()
    (tmp_path / "lamps" / "mine.txt").touch()
    with pytest.raises(ConfigError, match=r"exists already\. Choose another name, or another folder with --into"):
        write_package("lamps", tmp_path)
    assert [path.name for path in tmp_path.rglob("*")] == ["lamps", "mine.txt"]
