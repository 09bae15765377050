"""Tasks in Harbor's format: a folder with task.toml, instruction.md, environment/, tests/ and solution/.

The format is described at https://harborframework.com/docs/tasks.
"""

import json
import math
import os
import re
import shlex
import stat
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from env_adapters.terminal.dockerfile import MAX_FILES, read_dockerfile
from env_adapters.terminal.grading import TestsFailedError, graded
from env_adapters.terminal.runtimes import Limits, Runtime, SandboxLayout
from env_adapters.terminal.sandbox import Files, Sandbox
from verl_agent.errors import ConfigError

REWARD = "/logs/verifier"
NETWORK = re.compile(r"\b(?:apt|apt-get|curl|wget|pip3?|uv|uvx|npm|git clone)\b")
MAX_TEXT_BYTES = 1 << 20
"""Size of the longest text of a task: instruction, settings, Dockerfile, scripts."""
MAX_TASK_BYTES = 1 << 26
MAX_TIMEOUT_S = 86_400.0
TEST_OUTPUT_MB = 1


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
        return (text_of(file, str(self.folder)),) if file.is_file() else ()

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

        def grade(seconds: float) -> float:
            sandbox = Sandbox(runtime, replace(limits, files=limits.files + len(files)), layout)
            try:
                if not sandbox.put(files):
                    return 0.0
                sandbox.execute(("/bin/bash", "/tests/test.sh"), b"", seconds, TEST_OUTPUT_MB << 20)
                if sandbox.reason:
                    raise TestsFailedError(ENDED.get(sandbox.reason, sandbox.reason).format(seconds=self.tests_s))
                return reward(sandbox.take(REWARD) or {})
            finally:
                sandbox.end()

        return graded(grade, self.tests_s)


ENDED = {
    "seconds": "they took more than {seconds:g} seconds",
    "output": f"they wrote more than {TEST_OUTPUT_MB} MiB of output",
    "memory": "they took more than the memory of a sandbox",
    "processes": "they had more than the processes of a sandbox",
    "files": "they created more than the files of a sandbox",
    "cpu": "they took more than the CPU time of a sandbox",
}
"""Reason for the failure of tests, by the limit that they exceeded."""


def reward(written: Files) -> float:
    """Return the number in reward.txt, or `reward` of reward.json, from 0 to 1.

    Raises:
        TestsFailedError: there is no such number.
    """
    name = next((name for name in ("reward.txt", "reward.json") if name in written), "")
    if not name:
        raise TestsFailedError(f"they wrote neither reward.txt nor reward.json to {REWARD}")
    text = written[name][1][:MAX_TEXT_BYTES].decode(errors="replace")
    try:
        value = float(text) if name == "reward.txt" else json.loads(text)["reward"]
        if type(value) in (int, float) and math.isfinite(value):
            return min(max(float(value), 0.0), 1.0)
    except (LookupError, TypeError, ValueError, OverflowError, RecursionError):
        pass
    raise TestsFailedError(f"they wrote no number from 0 to 1 to {name}: {text.strip()!r:.60}")


@cache
def harbor_folders(root: str) -> list[Path]:
    """Return the folders of tasks in a folder, or the folder itself, sorted by name.

    Raises:
        ConfigError: no folder has a task.toml.
    """
    folder = Path(root).expanduser()
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
    key = f"env.options.tasks: the task {str(folder)!r}"
    check_files(folder, key)
    try:
        settings = tomllib.loads(text_of(folder / "task.toml", key))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{key} has a task.toml that is not TOML: {error}. Correct it.") from error
    if not (folder / "instruction.md").is_file():
        raise ConfigError(f"{key} has no instruction.md. Add it; tasks of several steps are not supported.")
    if not (folder / "tests" / "test.sh").is_file():
        raise ConfigError(f"{key} has no tests. Add tests/test.sh, which writes a number to {REWARD}/reward.txt.")
    for file in sorted((folder / "tests").rglob("*.sh")):
        if file.is_file() and b"\r\n" in file.read_bytes():
            raise ConfigError(
                f"{key} has {file.relative_to(folder)} with line ends of Windows, which bash takes for a part of each "
                f"command. Convert it: sed -i 's/\\r$//' {shlex.quote(str(file))}"
            )
    dockerfile = folder / "environment" / "Dockerfile"
    lines = re.sub(r"\\\n", " ", text_of(dockerfile, key)).splitlines() if dockerfile.is_file() else []
    workdir, environ, copies, missing = read_dockerfile(lines, folder / "environment")
    for file in (folder / "tests" / "test.sh", folder / "solution" / "solve.sh"):
        if file.is_file() and (found := NETWORK.search(text_of(file, key))):
            missing.append(f"{file.relative_to(folder)} uses {found[0]}, which needs a network")
    image = _value(settings, "environment", "docker_image", "", key)
    if not isinstance(image, str):
        raise ConfigError(f"{key} has environment.docker_image={image!r}. Allowed: the name of an image.")
    if image:
        missing.append(f"task.toml names the image {image}")
    return HarborTask(
        folder,
        text_of(folder / "instruction.md", key).strip(),
        SandboxLayout(folder=workdir, environ=environ, image=image),
        copies,
        _seconds(settings, "verifier", key),
        _seconds(settings, "agent", key),
        "; ".join(missing),
    )


def check_files(folder: Path, key: str) -> None:
    """Check that a task has only regular files, no link, and no more than a sandbox takes.

    Raises:
        ConfigError: it has others.
    """
    size, count = 0, 0
    for path in (folder, *sorted(folder.rglob("*"))):
        name, kind = str(path.relative_to(folder)), path.lstat().st_mode
        if not folder.name.isprintable() or not name.isprintable():
            raise ConfigError(f"{key} has a name with other than printable characters of UTF-8: {name!r}. Rename it.")
        if not stat.S_ISREG(kind) and not stat.S_ISDIR(kind):
            what = "a link, which is not followed" if stat.S_ISLNK(kind) else "neither file nor folder"
            raise ConfigError(f"{key} has {name!r}, {what}. Put a regular file in its place.")
        size += path.lstat().st_size
        count += stat.S_ISREG(kind) and path.is_relative_to(folder / "tests")
        if not os.access(path, os.R_OK):
            raise ConfigError(f"{key} has {name!r}, which may not be read. Change its permissions.")
    if size > MAX_TASK_BYTES or count > MAX_FILES:
        raise ConfigError(
            f"{key} has files of {size} bytes, and {count} of them in tests/. "
            f"Allowed: at most {MAX_TASK_BYTES} bytes, and {MAX_FILES} in tests/."
        )


def text_of(path: Path, key: str) -> str:
    """Return the text of a file of a task.

    Raises:
        ConfigError: it is too long, or not text in UTF-8.
    """
    if (size := path.stat().st_size) > MAX_TEXT_BYTES:
        raise ConfigError(f"{key} has {path.name} of {size} bytes. Allowed: at most {MAX_TEXT_BYTES}.")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{key} has {path.name} in another encoding than UTF-8: {error}. Convert it.") from error
    if "\0" in text:
        raise ConfigError(f"{key} has {path.name} with a null character. Remove it.")
    return text


def _value(settings: dict[str, Any], table: str, name: str, default: Any, key: str) -> Any:
    """Return a value of a table of task.toml."""
    found = settings.get(table, {})
    if not isinstance(found, dict):
        raise ConfigError(f"{key} has {table}={found!r:.60} in task.toml. Allowed: a table.")
    return found.get(name, default)


def _seconds(settings: dict[str, Any], table: str, key: str) -> float:
    """Return the time limit of a table of task.toml, 600 by default as in Harbor."""
    value = _value(settings, table, "timeout_sec", 600.0, key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= MAX_TIMEOUT_S:
        raise ConfigError(
            f"{key} has {table}.timeout_sec={value!r:.60}. Allowed: a number of seconds above 0, "
            f"at most {MAX_TIMEOUT_S:g}."
        )
    return float(value)
