"""Tasks in Harbor's format: a folder with task.toml, instruction.md, environment/, tests/ and solution/.

The format is described at https://harborframework.com/docs/tasks.
"""

import json
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

from env_adapters.terminal.runtimes import Limits, Runtime, SandboxLayout
from env_adapters.terminal.sandbox import Files, Sandbox, SandboxEndedError
from verl_agent.errors import ConfigError

REWARD = "/logs/verifier"
PLAIN = re.compile(r"(?:debian|ubuntu|python|buildpack-deps|bash)(?::[\w.-]+)?(?: AS \w+)?", re.IGNORECASE)
"""Base images whose programs the system of the host has as well, apart from versions."""
NETWORK = re.compile(r"\b(?:apt|apt-get|curl|wget|pip3?|uv|uvx|npm|git clone)\b")
VARIABLE = re.compile(r"""(\w+)=(["']?)([^\s"'$\\]+)\2""")
"""Argument of ENV that needs no other variable."""
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc", "/proc", "/dev", "/tests", "/logs", "/tmp", "/solution")
MAX_FILES = 200
TEST_OUTPUT = 1 << 20


@dataclass(frozen=True)
class HarborTask:
    """One task.

    Attributes:
        folder: folder of the task.
        instruction: text for the agent.
        layout: sandbox of the agent.
        copies: files of `environment/` by the name in the working folder.
        tests_s: wall-clock seconds of tests/test.sh.
        agent_s: wall-clock seconds of the agent's commands.
        missing: what the default runtime lacks for the task, or "".
    """

    folder: Path
    instruction: str
    layout: SandboxLayout
    copies: dict[str, Path]
    tests_s: float
    agent_s: float
    missing: str

    def begin(self) -> Files:
        return {
            name: (0o755 if path.stat().st_mode & 0o100 else 0o644, path.read_bytes())
            for name, path in self.copies.items()
        }

    @property
    def solution(self) -> Sequence[str]:
        """Commands of the oracle: solution/solve.sh; none without it."""
        file = self.folder / "solution" / "solve.sh"
        return (file.read_text(encoding="utf-8"),) if file.is_file() else ()

    def grade(self, files: Files, runtime: Runtime, limits: Limits) -> float:
        """Return the reward that tests/test.sh writes, in a fresh sandbox with the files that the agent left.

        The tests themselves run what they like of the agent's, as one user, so they are as safe as their author made
        them: the files of tests/ cannot change, no process of the agent is left, and no link is.

        Raises:
            EnvError: the sandbox of the tests does not start.
        """
        environ = {"PYTHONSAFEPATH": "1", "PYTHONNOUSERSITE": "1", "HOME": "/tmp"}
        layout = replace(
            self.layout, writable=(REWARD,), read_only={"/tests": self.folder / "tests"},
            environ={**self.layout.environ, **environ},
        )  # fmt: skip
        sandbox = Sandbox(runtime, replace(limits, files=limits.files + len(files)), layout)
        try:
            if not sandbox.put(files):
                return 0.0
            sandbox.execute(("/bin/bash", "/tests/test.sh"), b"", self.tests_s, TEST_OUTPUT)
            return reward(sandbox.take(REWARD) or {})
        except SandboxEndedError:
            return 0.0
        finally:
            sandbox.end()


def reward(written: Files) -> float:
    """Return the number in reward.txt, or `reward` of reward.json, from 0 to 1; 0 without either."""
    try:
        if "reward.txt" in written:
            value = float(written["reward.txt"][1])
        else:
            value = float(json.loads(written["reward.json"][1])["reward"])
    except (KeyError, TypeError, ValueError):
        return 0.0
    return min(max(value, 0.0), 1.0) if value == value else 0.0


@cache
def harbor_folders(root: str) -> list[Path]:
    """Return the folders of tasks in a folder, or the folder itself, sorted by name.

    Raises:
        ConfigError: no folder has a task.toml.
    """
    folder = Path(root)
    found = [folder] if (folder / "task.toml").is_file() else sorted(path.parent for path in folder.glob("*/task.toml"))
    if not found:
        raise ConfigError(
            f"env.options.tasks={root!r} has no task.toml, neither itself nor one folder below. Give a folder of tasks "
            "in Harbor's format, or `generated`."
        )
    return found


def read_task(folder: Path) -> HarborTask:
    """Return the task in a folder.

    Raises:
        ConfigError: the task is not complete.
    """
    key = f"env.options.tasks: the task {folder}"
    try:
        settings = tomllib.loads((folder / "task.toml").read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{key} has a task.toml that is not TOML: {error}. Correct it.") from error
    if not (folder / "instruction.md").is_file():
        raise ConfigError(f"{key} has no instruction.md. Add it; tasks of several steps are not supported.")
    if not (folder / "tests" / "test.sh").is_file():
        raise ConfigError(f"{key} has no tests. Add tests/test.sh, which writes a number to {REWARD}/reward.txt.")
    workdir, environ, copies, missing = read_dockerfile(folder / "environment")
    for file in (folder / "tests" / "test.sh", folder / "solution" / "solve.sh"):
        if file.is_file() and (found := NETWORK.search(file.read_text(encoding="utf-8", errors="replace"))):
            missing.append(f"{file.relative_to(folder)} uses {found[0]}, which needs a network")
    image = str(settings.get("environment", {}).get("docker_image") or "")
    if image:
        missing.append(f"task.toml names the image {image}")
    return HarborTask(
        folder,
        (folder / "instruction.md").read_text(encoding="utf-8").strip(),
        SandboxLayout(folder=workdir, environ=environ, image=image),
        copies,
        _seconds(settings, "verifier", key),
        _seconds(settings, "agent", key),
        "; ".join(missing),
    )


def _seconds(settings: dict[str, Any], table: str, key: str) -> float:
    """Return the time limit of a table of task.toml, 600 by default as in Harbor."""
    value = settings.get(table, {}).get("timeout_sec", 600.0)
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        raise ConfigError(f"{key} has {table}.timeout_sec={value!r}. Allowed: a number of seconds above 0.")
    return float(value)


def read_dockerfile(environment: Path) -> tuple[str, dict[str, str], dict[str, Path], list[str]]:
    """Return working folder, variables, copied files, and what a plain base image does not provide."""
    file, workdir = environment / "Dockerfile", "/app"
    environ: dict[str, str] = {}
    copies: dict[str, Path] = {}
    missing = [f"environment/{path.name}" for path in environment.glob("docker-compose*")]
    lines = re.sub(r"\\\n", " ", file.read_text(encoding="utf-8")).splitlines() if file.is_file() else []
    for line in map(str.strip, lines):
        word, _, rest = line.partition(" ")
        rest = rest.strip()
        if (
            word.upper() == "WORKDIR"
            and PurePosixPath(rest).is_absolute()
            and not any(PurePosixPath(rest).is_relative_to(folder) for folder in SYSTEM)
            and rest != "/"
        ):
            workdir = rest
        elif word.upper() == "ENV" and (variable := VARIABLE.fullmatch(rest)):
            environ[variable[1]] = variable[3]
        elif word.upper() in ("COPY", "ADD") and len(parts := rest.split()) == 2 and not rest.startswith("--"):
            found = copied(
                environment, parts[0], PurePosixPath(workdir, parts[1]), parts[1].endswith(("/", ".")), workdir
            )
            copies |= found or {}
            missing += [] if found is not None else [f"`{line[:80]}`"]
        elif not (
            line.startswith("#")
            or word.upper() in ("", "LABEL", "CMD")
            or (word.upper() == "FROM" and PLAIN.fullmatch(rest))
        ):
            missing.append(f"`{line[:80]}`")
    return workdir, environ, copies, missing


def copied(environment: Path, source: str, to: PurePosixPath, into: bool, workdir: str) -> dict[str, Path] | None:
    """Return the files that a line COPY puts below the working folder, by name, or None if it does something else."""
    path = (environment / source.lstrip("/")).resolve()
    if not path.is_relative_to(environment.resolve()) or not path.exists() or not to.is_relative_to(workdir):
        return None
    if path.is_file():
        name = to / path.name if into or str(to) == workdir else to
        return {str(name.relative_to(workdir)): path}
    files = [one for one in sorted(path.rglob("*")) if one.is_file() and not one.is_symlink()]
    names = {str((to / one.relative_to(path)).relative_to(workdir)): one for one in files if one.name != "Dockerfile"}
    return names if len(names) <= MAX_FILES and not any(".." in name for name in names) else None
