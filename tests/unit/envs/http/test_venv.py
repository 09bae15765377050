"""Packages of a virtual environment that serves one environment without the packages of training."""

import json
import sys
from pathlib import Path

import pytest

from verl_agent.envs.http.venv import STAMP, plan_venv, prepare_venv, without_venv
from verl_agent.errors import ConfigError

OURS = """Metadata-Version: 2.1
Name: verl-agent
Version: 9.1
Provides-Extra: serve
Provides-Extra: icy
"""
THEIRS = """Metadata-Version: 2.1
Name: Other_Envs
Version: 2.0
Requires-Dist: Verl_Agent>=0.1
"""


@pytest.fixture
def installed(tmp_path: Path):
    """Install this package and another one, each with an environment."""

    def install(name: str, metadata: str, entry: str, origin: dict | None = None) -> None:
        folder = tmp_path / f"{name}.dist-info"
        folder.mkdir(exist_ok=True)
        folder.joinpath("METADATA").write_text(metadata)
        folder.joinpath("entry_points.txt").write_text(f"[verl_agent.envs]\n{entry}\n")
        if origin is not None:
            folder.joinpath("direct_url.json").write_text(json.dumps(origin))

    install("verl_agent-9.1", OURS, "icy = ours.adapter:Icy")
    install("other_envs-2.0", THEIRS, "other = other.adapter:Other")
    sys.path.insert(0, str(tmp_path))
    yield install
    sys.path.remove(str(tmp_path))


def test_an_environment_of_this_package_takes_the_extra_serve_and_its_own(installed):
    assert plan_venv("icy") == ["verl-agent[serve,icy]==9.1"]


def test_an_extra_is_named_as_packages_list_it(installed):
    """Pip before 23.3 does not find `icy_river`."""
    metadata = OURS.replace("icy", "icy-river")
    installed("verl_agent-9.1", metadata, "icy_river = ours.adapter:Icy")
    assert plan_venv("icy_river") == ["verl-agent[serve,icy-river]==9.1"]


def test_an_environment_of_another_package_takes_that_package(installed):
    assert plan_venv("other") == ["verl-agent[serve]==9.1", "Other_Envs==2.0"]


@pytest.mark.parametrize(
    ("origin", "source"),
    [
        ({"url": "file:///home/a%20b/agent", "dir_info": {"editable": True}}, ["-e", "/home/a b/agent[serve,icy]"]),
        ({"url": "file:///home/agent", "dir_info": {}}, ["-e", "/home/agent[serve,icy]"]),
        (
            {"url": "https://host/agent.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}},
            ["verl-agent[serve,icy] @ git+https://host/agent.git@abc"],
        ),
        (
            {"url": "https://host/agent-9.1.whl", "archive_info": {}},
            ["verl-agent[serve,icy] @ https://host/agent-9.1.whl"],
        ),
    ],
)
def test_a_package_is_installed_from_its_original_source(installed, origin, source):
    installed("verl_agent-9.1", OURS, "icy = ours.adapter:Icy", origin)
    assert plan_venv("icy") == source


def test_an_unknown_environment_suggests_the_nearest(installed):
    with pytest.raises(ConfigError, match=r"env 'ici' is not registered\. Did you mean 'icy'\?"):
        plan_venv("ici")


def test_an_unrelated_folder_is_not_changed(installed, tmp_path):
    (tmp_path / "pyvenv.cfg").write_text("")
    with pytest.raises(ConfigError, match=r"was not created by this command\. Choose a new folder"):
        prepare_venv(tmp_path, "icy", print)


def test_a_complete_virtual_environment_is_kept(installed, tmp_path):
    folder, said = tmp_path / "venv", []
    folder.mkdir()
    folder.joinpath(STAMP).write_text(json.dumps(plan_venv("icy")))
    prepare_venv(folder, "icy", said.append)
    assert said == []


@pytest.mark.parametrize("given", [["--venv", "x"], ["--venv=x"]])
def test_without_venv_removes_the_option(given):
    assert without_venv(["serve", "icy", *given, "--port", "1"]) == ["serve", "icy", "--port", "1"]
