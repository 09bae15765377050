"""Runtimes of sandboxes: the command that starts the driver in bubblewrap, Docker or Podman."""

import json
import os
import platform
import re
import shutil
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import ClassVar

from typing_extensions import override

from env_adapters.terminal.seccomp import seccomp_filter
from verl_agent.envs.base import Requirement
from verl_agent.errors import ConfigError

INSTALL = "sudo apt-get install bubblewrap"
PYTHON = "/usr/bin/python3"
NOBODY = 65534
PASSWD = b"root:x:0:0::/:/bin/sh\nagent:x:1000:1000::/tmp:/bin/bash\n"
PROBE_S = 20.0
BOOT = ("-I", "-S", "-c", "import json, sys; text, limits = json.loads(sys.stdin.readline()); exec(text); main(limits)")
"""Arguments with which Python runs the driver that it reads from its standard input."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a sandbox; the keys of `env.options.limits`.

    Attributes:
        command_s: wall-clock seconds of one command, >= 1.
        episode_s: wall-clock seconds of all commands of an episode, >= 1.
        cpu_s: CPU seconds of an episode, >= 1.
        memory_mb: MiB of all processes together, >= 32; one process may reserve twice as many.
        disk_mb: MiB of the working folder, and as many of /tmp, >= 1.
        files: number of files that an episode may create, >= 100.
        processes: number of processes at once, >= 4.
        output_chars: characters of an output that the model reads, >= 100.
    """

    command_s: float = 10.0
    episode_s: float = 300.0
    cpu_s: int = 60
    memory_mb: int = 256
    disk_mb: int = 16
    files: int = 5000
    processes: int = 32
    output_chars: int = 2000


LEAST = Limits(1, 1, 1, 32, 1, 100, 4, 100)


@dataclass(frozen=True, slots=True)
class SandboxLayout:
    """Contents of a sandbox beside the system's programs.

    Attributes:
        folder: absolute path of the working folder.
        writable: further folders, empty at the beginning.
        read_only: folders of the host, by the path under which the sandbox sees copies of their files.
        environ: environment variables beside those of all sandboxes.
        image: container image; empty for the default one. bubblewrap uses the system's own files.
    """

    folder: str = "/work"
    writable: Sequence[str] = ()
    read_only: Mapping[str, Path] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict)
    image: str = ""


@dataclass(slots=True)
class Start:
    """Command that starts a sandbox, its first input, and descriptors that it inherits and the caller closes."""

    command: list[str]
    driver: bytes
    descriptors: list[int] = field(default_factory=list)


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
    return json.dumps((_driver(), settings)).encode() + b"\n"


@cache
def _driver() -> str:
    return Path(__file__).with_name("driver.py").read_text(encoding="utf-8")


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
        started = Start(["bwrap", *_system()], driver(limits, layout, "/usr/bin:/bin", own_user=counted))
        size = ["--size", str(limits.disk_mb << 20)]
        for path, source in layout.read_only.items():
            for file in sorted(one for one in source.rglob("*") if one.is_file() and not one.is_symlink()):
                started.descriptors.append(os.open(file, os.O_RDONLY))
                to = f"{path}/{file.relative_to(source)}"
                started.command += ["--perms", "0555", "--ro-bind-data", str(started.descriptors[-1]), to]
        for content, path in ((PASSWD, "/etc/passwd"), (b"root:x:0:\nagent:x:1000:\n", "/etc/group")):
            started.descriptors.append(_readable(content))
            started.command += ["--ro-bind-data", str(started.descriptors[-1]), path]
        for path in (layout.folder, "/tmp", *layout.writable):
            started.command += [*size, "--tmpfs", path]
        started.command += ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", layout.folder]
        if program := seccomp_filter():
            started.descriptors.append(_readable(program))
            started.command += ["--seccomp", str(started.descriptors[-1])]
        started.command += ["--", PYTHON, *BOOT]
        return started


@cache
def _system() -> list[str]:
    """Return the arguments of bubblewrap that all sandboxes share."""
    arguments = ["--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent", "--new-session"]
    arguments += ["--as-pid-1", "--cap-drop", "ALL", "--uid", "1000", "--gid", "1000", "--hostname", "sandbox"]
    arguments += ["--clearenv", "--ro-bind", "/usr", "/usr", "--tmpfs", "/usr/local", "--remount-ro", "/usr/local"]
    for path in ("/bin", "/sbin", "/lib", "/lib64"):
        if os.path.islink(path):
            arguments += ["--symlink", os.readlink(path), path]
        elif os.path.isdir(path):
            arguments += ["--ro-bind", path, path]
    for path in ("/etc/alternatives", "/etc/ld.so.cache"):
        arguments += ["--ro-bind-try", path, path]
    return [*arguments, "--proc", "/proc", "--dev", "/dev"]


def _readable(content: bytes) -> int:
    """Return a descriptor from which a child process reads `content`."""
    end, other = os.pipe()
    os.write(other, content)
    os.close(other)
    return end


def bubblewrap_problem(bwrap: str | None, python: str) -> str:
    """Return why bubblewrap cannot start a sandbox, and the remedy, or "".

    Args:
        bwrap: path of the program; None if it is not installed.
        python: interpreter of the system, which runs the first process of a sandbox.
    """
    if bwrap is None:
        return f"the program bwrap is not installed. Install it ({INSTALL}), or set env.options.runtime=docker."
    if not os.access(python, os.X_OK) or not os.access("/bin/bash", os.X_OK):
        return f"a sandbox needs {python} and /bin/bash of the system: sudo apt-get install python3 bash."
    user = NOBODY if os.geteuid() == 0 else None
    command = [bwrap, *_system(), "--remount-ro", "/", "--", python, "-I", "-S", "-c", "import ctypes"]
    try:
        done = subprocess.run(
            command, user=user, group=user, extra_groups=[] if user else None, capture_output=True, cwd="/",
            timeout=PROBE_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"bwrap does not run: {error}."
    if done.returncode == 0:
        return ""
    said = (done.stderr.decode(errors="replace").strip().splitlines() or ["no message"])[-1]
    if "disable-userns" in said or "Unknown option" in said:
        return f"bwrap is too old ({said}). Version 0.8 or later is needed: {INSTALL}."
    return (
        f"bwrap may not make namespaces ({said}). "
        f"Allow them: {' or '.join(_switches()) or 'a kernel with CONFIG_USER_NS'}; start a container with "
        "--security-opt seccomp=unconfined --security-opt systempaths=unconfined. Or set env.options.runtime=docker."
    )


def _switches() -> list[str]:
    """Return commands for the settings of this kernel that forbid namespaces of users."""
    wanted = (
        ("kernel/unprivileged_userns_clone", "0", "1"),
        ("kernel/apparmor_restrict_unprivileged_userns", "1", "0"),
        ("user/max_user_namespaces", "0", "10000"),
    )
    found = []
    for name, forbids, allows in wanted:
        file = Path("/proc/sys", name)
        if file.is_file() and file.read_text(encoding="utf-8").strip() == forbids:
            found.append(f"sudo sysctl -w {name.replace('/', '.')}={allows}")
    return found


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
        command = [self.name, "run", "--rm", "-i", "--network", "none", "--read-only", "--cap-drop", "ALL"]
        command += ["--security-opt", "no-new-privileges", "--user", f"{NOBODY}:{NOBODY}", "--shm-size", "1m"]
        memory = f"{limits.memory_mb + limits.disk_mb * (2 + len(layout.writable)) + 64}m"
        command += ["--memory", memory, "--memory-swap", memory, "--pids-limit", str(limits.processes + 2)]
        for path in (layout.folder, "/tmp", *layout.writable):
            command += ["--tmpfs", f"{path}:rw,exec,nosuid,size={limits.disk_mb}m,mode=0777"]
        for path, source in layout.read_only.items():
            command += ["--volume", f"{source.resolve()}:{path}:ro"]
        command += ["--workdir", layout.folder, "--entrypoint", "python3", layout.image or self.image, *BOOT]
        return Start(command, driver(limits, layout, "/usr/local/bin:/usr/bin:/bin", own_user=False))


RUNTIMES = ("bubblewrap", "docker", "podman")


def make_runtime(name: str, image: str) -> Runtime:
    """Return the runtime `name`."""
    return Bubblewrap() if name == "bubblewrap" else Container(name, image)


def requirement() -> Requirement:
    """Return the requirement of the default runtime."""
    problem = Bubblewrap().problem()
    return Requirement("bubblewrap", not problem, INSTALL, problem or shutil.which("bwrap") or "")
