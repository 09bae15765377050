"""Virtual environments that serve one environment, without torch and verl.

Their packages follow from installed metadata: the extra `serve` of this package and the extra named after the
environment, or the requirements of the package that registers it. The packages themselves are added without their
dependencies, which only training needs.
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
"""File in such a virtual environment that lists the installed packages; empty if it is incomplete."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Contents of the virtual environment of one environment.

    Attributes:
        requirements: packages installed with their dependencies.
        sources: packages installed without their dependencies, each as arguments of pip.
    """

    requirements: Sequence[str]
    sources: Sequence[Sequence[str]]

    @property
    def text(self) -> str:
        """Return the contents as text, to compare with the stamp."""
        return json.dumps([list(self.requirements), [list(source) for source in self.sources]])


def plan_venv(env: str) -> Plan:
    """Return the packages that serving `env` needs.

    Raises:
        ConfigError: the environment is not registered.
    """
    known = {entry.name: entry for entry in entry_points(group=ENTRY_POINT_GROUP)}
    if env not in known:
        raise ConfigError(f"env {env!r} is not registered. {did_you_mean(env, known)}")
    own, owner = distribution(PACKAGE), known[env].dist
    assert owner is not None  # an installed entry point belongs to a package
    requirements = required(own, "serve")
    sources = [source(own)]
    if canonicalize_name(owner.name) == PACKAGE:
        requirements += required(own, env)
    else:
        requirements += [text for text in required(owner) if canonicalize_name(Requirement(text).name) != PACKAGE]
        sources.append(source(owner))
    return Plan(requirements, sources)


def required(package: Distribution, extra: str = "") -> list[str]:
    """Return the requirements of an extra of a package; without an extra, those of the package itself."""
    texts = []
    for requirement in map(Requirement, package.requires or []):
        by_extra = requirement.marker is not None and "extra" in str(requirement.marker)
        applies = requirement.marker is None or requirement.marker.evaluate({"extra": extra})
        if applies and by_extra == bool(extra):
            requirement.marker = None
            texts.append(str(requirement))
    return texts


def source(package: Distribution) -> list[str]:
    """Return the pip arguments that install `package` from its original source: folder, repository or index."""
    recorded = package.read_text("direct_url.json")
    if recorded is None:
        return [f"{package.name}=={package.version}"]
    origin = json.loads(recorded)
    url = origin["url"]
    if "dir_info" in origin:
        return ["-e", unquote(urlparse(url).path)]  # changes in the folder take effect at once
    if "vcs_info" in origin:
        return [f"{origin['vcs_info']['vcs']}+{url}@{origin['vcs_info']['commit_id']}"]
    return [url]


def make(folder: Path, env: str, report: Callable[[str], None]) -> None:
    """Create or update the virtual environment in `folder`; keep one that is up to date.

    Raises:
        ConfigError: the folder contains something else, or pip fails.
    """
    contents, stamp = plan_venv(env), folder / STAMP
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == contents.text:
        return
    if folder.exists() and not stamp.is_file() and any(folder.iterdir()):
        raise ConfigError(f"--venv {folder} was not created by this command. Choose a new folder.")
    report(f"new virtual environment {folder}")
    folder.mkdir(parents=True, exist_ok=True)
    stamp.write_text("", encoding="utf-8")  # created by this command, and incomplete
    _run([sys.executable, "-m", "venv", str(folder)])
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    report(f"installing {', '.join(contents.requirements)}")
    _run([*pip, *contents.requirements])
    for arguments in contents.sources:
        report(f"installing {' '.join(arguments)} without the dependencies that only training needs")
        _run([*pip, "--no-deps", *arguments])
    stamp.write_text(contents.text, encoding="utf-8")


def without_venv(arguments: Sequence[str]) -> list[str]:
    """Return the arguments of a command without its option `--venv`."""
    remaining = [argument for argument in arguments if not argument.startswith("--venv=")]
    if "--venv" in remaining:
        index = remaining.index("--venv")
        del remaining[index : index + 2]
    return remaining


def clean_environment() -> dict[str, str]:
    """Return the environment variables without those that add packages of another virtual environment."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, env=clean_environment(), capture_output=True, text=True, check=False)
    if done.returncode:
        raise ConfigError(f"{' '.join(command)} failed:\n{(done.stderr or done.stdout).strip()[-2000:]}")
