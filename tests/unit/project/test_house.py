"""The rules of the house that no linter knows."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests import ROOT

PYTHON_FILES = [
    path
    for folder in ("verl_agent", "env_adapters", "tests", "examples")
    for path in sorted((ROOT / folder).rglob("*.py"))
]
LIBRARY_FILES = [path for path in PYTHON_FILES if path.relative_to(ROOT).parts[0] in ("verl_agent", "env_adapters")]
MAX_LINES = 300


@pytest.mark.parametrize("name", ["train.sh", "eval.sh"])
def test_a_recipe_script_is_the_same_in_every_folder(name):
    folders = [path for path in sorted((ROOT / "recipes").iterdir()) if path.is_dir() and path.name != "studies"]
    assert folders, "recipes/ holds no recipe folder"
    without = [str(folder.relative_to(ROOT)) for folder in folders if not (folder / name).is_file()]
    assert not without, f"no {name} in {without}"
    assert len({(folder / name).read_bytes() for folder in folders}) == 1, f"recipes/*/{name} are not the same bytes"


def test_every_python_file_opens_by_saying_what_it_does():
    def silent(path: Path) -> bool:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        return bool(tree.body) and not ast.get_docstring(tree)  # an empty __init__.py has nothing to say

    assert [str(path.relative_to(ROOT)) for path in [ROOT / "setup.py", *PYTHON_FILES] if silent(path)] == []


def test_no_file_of_the_library_is_too_long():
    lengths = {
        str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines()) for path in LIBRARY_FILES
    }
    assert {name: lines for name, lines in lengths.items() if lines > MAX_LINES} == {}


def test_no_test_module_imports_another():
    """Shared fakes and helpers are in tests/support/, shared fixtures in a conftest.py."""
    imports = re.compile(r"^\s*(?:from|import) (?:tests\.\S*)?\btest_\w+", re.MULTILINE)
    assert [str(path) for path in (ROOT / "tests").rglob("*.py") if imports.search(path.read_text("utf-8"))] == []


def test_the_changelog_has_the_version_of_the_package():
    found = re.search(r'^    version="([^"]+)"', (ROOT / "setup.py").read_text(encoding="utf-8"), re.MULTILINE)
    assert found, "setup.py states no version"
    assert f"## [{found[1]}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_every_environment_has_its_recipes_and_its_data_sheet():
    names = re.findall(r'"(\w+) = env_adapters\.\w+\.adapter:', (ROOT / "setup.py").read_text(encoding="utf-8"))
    names.remove("agentgym")  # plays the environments of other servers; docs/guides/http.md describes it
    wanted = [f"{folder}/{name}/{file}" for name in names for folder, file in _FILES_OF_AN_ENVIRONMENT]
    wanted += [f"docs/environments/{name.replace('_', '-')}.md" for name in names]
    assert [path for path in wanted if not (ROOT / path).is_file()] == []


_FILES_OF_AN_ENVIRONMENT = [
    ("env_adapters", "adapter.py"),
    ("env_adapters", "README.md"),
    ("recipes", "train.sh"),
    ("recipes", "eval.sh"),
]


def test_adapters_may_import_only_four_packages():
    """import-linter has no allow-list, so the contract forbids every other package; none may be left out."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = {contract["name"]: contract for contract in config["tool"]["importlinter"]["contracts"]}
    forbidden = contracts["Adapters import only envs, types, errors and sections"]["forbidden_modules"]
    paths = [
        path for path in (ROOT / "verl_agent").iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()
    ]
    packages = {f"verl_agent.{path.stem}" for path in paths if path.stem != "__init__"}
    assert packages - set(forbidden) == {f"verl_agent.{name}" for name in ("envs", "types", "errors", "sections")}


def test_an_installed_package_has_every_data_file(tmp_path):
    listed = subprocess.check_output(["git", "ls-files", "verl_agent", "env_adapters"], cwd=ROOT, text=True).split()
    tracked = [name for name in listed if not name.endswith(".py")]
    built = tmp_path / "lib"
    command = [sys.executable, "setup.py", "-q", "egg_info", "-e", str(tmp_path), "build_py", "-d", str(built)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    assert [name for name in tracked if not (built / name).is_file()] == []


BORDERS = (
    *("commands/", "config/", "training/offline/evolve/", "evaluation/suite/"),
    *("evaluation/settings.py", "evaluation/job.py", "evaluation/what_if/settings.py"),
)
"""Where composed configs are read."""
VERLS = ("training/cluster.py", "training/verl_config.py")
"""Where verl's config is made, and handed to verl."""


def test_only_the_border_and_subclasses_of_verl_know_omegaconf():
    imports = re.compile(r"^\s*(?:from|import) omegaconf\b", re.MULTILINE)
    readers = {
        str(path.relative_to(ROOT / "verl_agent"))
        for path in LIBRARY_FILES
        if imports.search(path.read_text("utf-8")) and path.is_relative_to(ROOT / "verl_agent")
    }
    assert {path for path in readers if not path.startswith((*BORDERS, *VERLS))} == set()
    assert [place for place in (*BORDERS, *VERLS) if not any(path.startswith(place) for path in readers)] == []
