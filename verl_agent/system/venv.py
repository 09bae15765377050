"""Make a virtual environment that can serve one environment and nothing else: its pins, and neither torch nor verl.

What is installed follows from installed metadata: the extra `serve` of this package, the extra named after the
environment (or what the package that registers it requires), and the packages themselves without what training needs.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution, distribution, entry_points
from pathlib import Path
from urllib.parse import unquote, urlparse

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from verl_agent.envs.registry import ENTRY_POINT_GROUP
from verl_agent.errors import ConfigError, did_you_mean

PACKAGE = "verl-agent"
STAMP = ".verl-agent-serves"
"""File in our environments that says what was installed; empty in one that is not finished."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What goes into the virtual environment of one environment.

    Attributes:
        requirements: installed with all that they need.
        sources: packages installed without what they need: arguments of pip.
    """

    requirements: Sequence[str]
    sources: Sequence[Sequence[str]]

    @property
    def text(self) -> str:
        """All of it, to compare with."""
        return json.dumps([list(self.requirements), [list(source) for source in self.sources]])


def plan(env: str) -> Plan:
    """What is needed to serve `env`.

    Raises:
        ConfigError: no package registers it, or this package is not installed.
    """
    known = {entry.name: entry for entry in entry_points(group=ENTRY_POINT_GROUP)}
    if env not in known:
        raise ConfigError(f"env {env!r} is not registered. {did_you_mean(env, known)}")
    ours, owner = distribution(PACKAGE), known[env].dist
    assert owner is not None  # an entry point that is found belongs to a package
    requirements = required(ours, "serve")
    sources = [source(ours)]
    if canonicalize_name(owner.name) == PACKAGE:
        requirements += required(ours, env)
    else:
        requirements += [text for text in required(owner) if canonicalize_name(Requirement(text).name) != PACKAGE]
        sources.append(source(owner))
    return Plan(requirements, sources)


def required(package: Distribution, extra: str = "") -> list[str]:
    """What an extra of a package asks for, or without one what the package itself asks for."""
    found = []
    for requirement in map(Requirement, package.requires or []):
        by_extra = requirement.marker is not None and "extra" in str(requirement.marker)
        applies = requirement.marker is None or requirement.marker.evaluate({"extra": extra})
        if applies and by_extra == bool(extra):
            requirement.marker = None
            found.append(str(requirement))
    return found


def source(package: Distribution) -> list[str]:
    """Arguments with which pip installs `package` from where it came: a folder, a repository, or the index."""
    recorded = package.read_text("direct_url.json")
    if recorded is None:
        return [f"{package.name}=={package.version}"]
    origin = json.loads(recorded)
    url = origin["url"]
    if "dir_info" in origin:
        return ["-e", unquote(urlparse(url).path)]  # so that it does not stay behind the folder
    if "vcs_info" in origin:
        return [f"{origin['vcs_info']['vcs']}+{url}@{origin['vcs_info']['commit_id']}"]
    return [url]


def make(folder: Path, env: str, say: Callable[[str], None]) -> None:
    """Make or renew the virtual environment in `folder`; one that is up to date is left alone.

    Raises:
        ConfigError: the folder holds something else, or pip fails.
    """
    wanted, stamp = plan(env), folder / STAMP
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == wanted.text:
        return
    if folder.exists() and not stamp.is_file() and any(folder.iterdir()):
        raise ConfigError(f"--venv {folder} was not made by this command. Name a new folder.")
    say(f"new virtual environment {folder}")
    folder.mkdir(parents=True, exist_ok=True)
    stamp.write_text("", encoding="utf-8")  # ours, and not finished
    _run([sys.executable, "-m", "venv", str(folder)])
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    say(f"installing {', '.join(wanted.requirements)}")
    _run([*pip, *wanted.requirements])
    for arguments in wanted.sources:
        say(f"installing {' '.join(arguments)} without what only training needs")
        _run([*pip, "--no-deps", *arguments])
    stamp.write_text(wanted.text, encoding="utf-8")


def without_venv(arguments: Sequence[str]) -> list[str]:
    """The arguments of a command without its option `--venv`."""
    left = [part for part in arguments if not part.startswith("--venv=")]
    if "--venv" in left:
        place = left.index("--venv")
        del left[place : place + 2]
    return left


def clean_environment() -> dict[str, str]:
    """The variables of this process without those that would show another environment's packages to Python."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, env=clean_environment(), capture_output=True, text=True, check=False)
    if done.returncode:
        raise ConfigError(f"{' '.join(command)} failed:\n{(done.stderr or done.stdout).strip()[-2000:]}")
