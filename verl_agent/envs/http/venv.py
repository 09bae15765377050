"""Virtual environments that serve one environment, without torch and verl.

They get this package with its extra `serve` and the extra named after the environment, or the package that registers
the environment, each from where it was installed.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import Distribution, distribution, entry_points
from pathlib import Path
from urllib.parse import unquote, urlparse

from packaging.utils import canonicalize_name

from verl_agent.envs.registry import ENTRY_POINT_GROUP
from verl_agent.errors import ConfigError, did_you_mean

PACKAGE = "verl-agent"
STAMP = ".verl-agent-serves"
"""File in such a virtual environment with the arguments of pip; empty if it is incomplete."""


def plan_venv(env: str) -> list[str]:
    """Return the arguments of pip that install what serving `env` needs.

    Raises:
        ConfigError: the environment is not registered.
    """
    known = {entry.name: entry for entry in entry_points(group=ENTRY_POINT_GROUP)}
    if env not in known:
        raise ConfigError(f"env {env!r} is not registered. {did_you_mean(env, known)}")
    own, owner = distribution(PACKAGE), known[env].dist
    assert owner is not None  # an installed entry point belongs to a package
    if canonicalize_name(owner.name) != PACKAGE:
        return [*source(own, "serve"), *source(owner)]
    extra = canonicalize_name(env)
    has_extra = extra in map(canonicalize_name, own.metadata.get_all("Provides-Extra") or [])
    return source(own, "serve", *([extra] if has_extra else []))


def source(package: Distribution, *extras: str) -> list[str]:
    """Return the pip arguments that install `package` from its original source: folder, repository or index."""
    listed = f"[{','.join(extras)}]" if extras else ""
    recorded = package.read_text("direct_url.json")
    if recorded is None:
        return [f"{package.name}{listed}=={package.version}"]
    origin = json.loads(recorded)
    url = origin["url"]
    if "dir_info" in origin:
        return ["-e", f"{unquote(urlparse(url).path)}{listed}"]  # changes in the folder take effect at once
    if "vcs_info" in origin:
        url = f"{origin['vcs_info']['vcs']}+{url}@{origin['vcs_info']['commit_id']}"
    return [f"{package.name}{listed} @ {url}"]


def prepare_venv(folder: Path, env: str, report: Callable[[str], None]) -> None:
    """Create or update the virtual environment in `folder`; keep one that is up to date.

    Raises:
        ConfigError: the folder contains something else, or pip fails.
    """
    packages, stamp = plan_venv(env), folder / STAMP
    text = json.dumps(packages)
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == text:
        return
    if folder.exists() and not stamp.is_file() and any(folder.iterdir()):
        raise ConfigError(f"--venv {folder} was not created by this command. Choose a new folder.")
    report(f"new virtual environment {folder}")
    folder.mkdir(parents=True, exist_ok=True)
    stamp.write_text("", encoding="utf-8")  # created by this command, and incomplete
    _run([sys.executable, "-m", "venv", str(folder)])
    report(f"installing {' '.join(packages)}")
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    _run([*pip, *packages])
    stamp.write_text(text, encoding="utf-8")


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
