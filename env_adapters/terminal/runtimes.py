"""Runtimes of sandboxes: the command that starts the driver in bubblewrap, Docker or Podman."""

import json
import os
import platform
import re
import secrets
import shutil
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import Field
from pydantic.dataclasses import dataclass as pydantic_dataclass
from typing_extensions import override

from env_adapters.terminal.bubblewrap import (
    INSTALL,
    NOBODY,
    PROBE_S,
    PYTHON,
    START,
    bubblewrap_problem,
    readable,
    shared_arguments,
)
from env_adapters.terminal.control_group import END, ControlGroup, delegated
from env_adapters.terminal.seccomp import seccomp_filter
from env_adapters.terminal.usage import CPU_FILE
from verl_agent.envs.base import Requirement
from verl_agent.envs.options import AtLeastOne
from verl_agent.errors import ConfigError
from verl_agent.sections import STRICT, section

PASSWD = b"root:x:0:0::/:/bin/sh\nagent:x:1000:1000::/tmp:/bin/bash\n"
BOOT = ("-I", "-S", "-c", "import json, sys; text, limits = json.loads(sys.stdin.readline()); exec(text); main(limits)")
"""Arguments with which Python runs the driver that it reads from its standard input."""


@pydantic_dataclass(frozen=True, slots=True, config=STRICT)
class Limits:
    """Limits of a sandbox; the keys of `env.options.limits`."""

    command_s: Annotated[float, Field(ge=1)] = 10.0
    """Wall-clock seconds of one command."""
    episode_s: Annotated[float, Field(ge=1)] = 300.0
    """Wall-clock seconds of all commands of an episode."""
    cpu_s: AtLeastOne = 60
    """CPU seconds of an episode."""
    memory_mb: Annotated[int, Field(ge=32)] = 256
    """MiB of all processes together; one process may reserve twice as many."""
    disk_mb: AtLeastOne = 16
    """MiB of the working folder, and as many of /tmp."""
    files: Annotated[int, Field(ge=100)] = 5000
    """Number of files that an episode may create."""
    processes: Annotated[int, Field(ge=4)] = 32
    """Number of processes at once."""
    output_chars: Annotated[int, Field(ge=100)] = 2000
    """Characters of an output that the model reads."""
    open_files: Annotated[int, Field(ge=16)] = 64
    """Files and sockets that one process has open at once."""


def read_limits(given: Mapping[str, Any], defaults: Mapping[str, float]) -> Limits:
    """Return the limits of `env.options.limits`, with `defaults` in place of those of `Limits`.

    Raises:
        ConfigError: a key names no limit, or a value is not allowed.
    """
    return section("env.options.limits", Limits, {**defaults, **given})


@dataclass(frozen=True, slots=True)
class SandboxLayout:
    """Contents of a sandbox beside the system's programs.

    Attributes:
        folder: absolute path of the working folder.
        writable: further folders, empty at the beginning.
        read_only: folders of the host, by the path under which the sandbox sees copies of their files.
        visible: files, folders and sockets of the host that the sandbox sees in their places, read-only.
        environ: environment variables beside those of all sandboxes.
        image: container image; empty for the default one. bubblewrap uses the system's own files.
    """

    folder: str = "/work"
    writable: Sequence[str] = ()
    read_only: Mapping[str, Path] = field(default_factory=dict)
    visible: Sequence[Path] = ()
    environ: Mapping[str, str] = field(default_factory=dict)
    image: str = ""


@dataclass(slots=True)
class Start:
    """Command that starts a sandbox, its first input, descriptors for it that the caller closes, and a last command."""

    command: list[str]
    driver: bytes
    descriptors: list[int] = field(default_factory=list)
    ending: Sequence[str] = ()


def driver(limits: Limits, layout: SandboxLayout, path: str, own_user: bool) -> bytes:
    """Return the first line that a sandbox reads: the driver and its settings.

    Args:
        limits: limits of the sandbox.
        layout: contents of the sandbox.
        path: folders of programs.
        own_user: True if the kernel counts the processes of this sandbox apart from others.
    """
    environ = {
        "PATH": path,
        "HOME": layout.folder,
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "PS1": "",
        "PS2": "",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",
        **layout.environ,
    }
    settings = {**asdict(limits), "folder": layout.folder, "own_user": own_user, "environ": environ}
    settings["writable"] = list(layout.writable)
    return json.dumps((_driver(), settings)).encode() + b"\n"


@cache
def _driver() -> str:
    """Return the text of the driver with `usage.py` in the place of its import."""
    texts = [Path(__file__).with_name(name).read_text(encoding="utf-8") for name in ("usage.py", "driver.py")]
    return "\n".join(line for line in "".join(texts).splitlines() if not line.startswith("from env_adapters."))


class Runtime(ABC):
    """Way to start a sandbox."""

    name: ClassVar[str]

    @abstractmethod
    def start(self, limits: Limits, layout: SandboxLayout) -> Start:
        """Return the command of a sandbox."""

    @abstractmethod
    def problem(self) -> str:
        """Return why this machine cannot start sandboxes, and the remedy, or ""."""

    def check(self) -> None:
        """Raise ConfigError if this machine cannot start sandboxes."""
        if problem := self.problem():
            raise ConfigError(f"env.options.runtime={self.name!r}: {problem}")

    @property
    def user(self) -> int | None:
        """User id under which the command starts; None keeps the caller's."""
        return None


class Bubblewrap(Runtime):
    """Sandboxes of unprivileged namespaces, without a daemon. They see the host's /usr, read-only."""

    name = "bubblewrap"

    @override
    @property
    def user(self) -> int | None:
        return NOBODY if os.geteuid() == 0 else None  # the kernel does not count the processes of root

    @override
    def problem(self) -> str:
        return bubblewrap_problem(shutil.which("bwrap"), PYTHON)

    @override
    def start(self, limits: Limits, layout: SandboxLayout) -> Start:
        release = re.match(r"(\d+)\.(\d+)", platform.release())
        counted = release is not None and (int(release[1]), int(release[2])) >= (5, 14)
        started = Start([*START], driver(limits, layout, "/usr/bin:/bin", own_user=counted))
        if parent := delegated():
            disks = limits.disk_mb * (2 + len(layout.writable))
            group = ControlGroup.make(parent, limits.memory_mb + disks, limits.processes)
            started.descriptors.append(group.entrance)
            started.command += [str(group.entrance), "--ro-bind", str(group.folder / "cpu.stat"), CPU_FILE]
            started.ending = (*END, str(group.folder))
        else:
            started.command.append("-")
        started.command += shared_arguments()
        size = ["--size", str(limits.disk_mb << 20)]
        for path, source in layout.read_only.items():
            for file in sorted(one for one in source.rglob("*") if one.is_file() and not one.is_symlink()):
                started.descriptors.append(os.open(file, os.O_RDONLY))
                to = f"{path}/{file.relative_to(source)}"
                started.command += ["--perms", "0555", "--ro-bind-data", str(started.descriptors[-1]), to]
        for content, path in ((PASSWD, "/etc/passwd"), (b"root:x:0:\nagent:x:1000:\n", "/etc/group")):
            started.descriptors.append(readable(content))
            started.command += ["--ro-bind-data", str(started.descriptors[-1]), path]
        for path in (layout.folder, "/tmp", *layout.writable):
            started.command += [*size, "--tmpfs", path]
        for one in layout.visible:
            started.command += ["--ro-bind", str(one), str(one)]
        started.command += ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", layout.folder]
        if program := seccomp_filter():
            started.descriptors.append(readable(program))
            started.command += ["--seccomp", str(started.descriptors[-1])]
        started.command += ["--", PYTHON, *BOOT]
        return started


class Container(Runtime):
    """Sandboxes as containers of Docker, or of Podman, which takes the same arguments."""

    def __init__(self, name: str, image: str) -> None:
        self.name, self.image = name, image  # type: ignore[misc]

    @override
    def problem(self) -> str:
        if shutil.which(self.name) is None:
            return f"the program {self.name} is not installed. Install it, or set env.options.runtime=bubblewrap."
        try:
            done = subprocess.run([self.name, "info"], capture_output=True, timeout=PROBE_S, check=False)
            said = (done.stderr.decode(errors="replace").strip().splitlines() or ["no message"])[-1]
            if done.returncode == 0:
                return ""
        except (OSError, subprocess.TimeoutExpired) as error:
            said = str(error)
        return f"{self.name} does not work ({said}). Start its daemon, or set env.options.runtime=bubblewrap."

    @override
    def start(self, limits: Limits, layout: SandboxLayout) -> Start:
        name = f"verl-agent-{secrets.token_hex(8)}"
        command = [self.name, "run", "--name", name, "--rm", "-i", "--network", "none", "--read-only"]
        user = f"{NOBODY}:{NOBODY}"
        command += ["--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--user", user, "--shm-size", "1m"]
        memory = f"{limits.memory_mb + limits.disk_mb * (2 + len(layout.writable)) + 64}m"
        command += ["--memory", memory, "--memory-swap", memory, "--pids-limit", str(limits.processes + 2)]
        command += ["--oom-score-adj", "1000"]
        for path in (layout.folder, "/tmp", *layout.writable):
            command += ["--tmpfs", f"{path}:rw,exec,nosuid,size={limits.disk_mb}m,mode=0777"]
        for path, source in layout.read_only.items():
            command += ["--volume", f"{source.resolve()}:{path}:ro"]
        for one in layout.visible:
            command += ["--volume", f"{one}:{one}:ro"]
        command += ["--workdir", layout.folder, "--entrypoint", "python3", layout.image or self.image, *BOOT]
        first = driver(limits, layout, "/usr/local/bin:/usr/bin:/bin", own_user=False)
        return Start(command, first, ending=(self.name, "rm", "--force", name))


RuntimeName = Literal["bubblewrap", "docker", "podman"]
RUNTIMES: Sequence[str] = get_args(RuntimeName)


def make_runtime(name: str, image: str) -> Runtime:
    """Return the runtime `name`."""
    return Bubblewrap() if name == "bubblewrap" else Container(name, image)


def requirement() -> Requirement:
    """Return the requirement of the default runtime."""
    problem = Bubblewrap().problem()
    return Requirement("bubblewrap", not problem, INSTALL, problem or f"{shutil.which('bwrap')}; {limits_hold_by()}")


def limits_hold_by() -> str:
    """Return what makes the limits of memory, processes and CPU time of bubblewrap's sandboxes hold here."""
    if parent := delegated():
        return f"limits by cgroup v2 in {parent}"
    return "limits by seccomp and rlimits: no group of cgroup v2 with memory and pids is delegated to this process"
