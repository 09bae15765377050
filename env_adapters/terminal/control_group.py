"""Control groups (cgroups v2) in which the kernel limits all memory and processes of a sandbox."""

import os
import secrets
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

MOUNT = Path("/sys/fs/cgroup")
PREFIX = "verl-agent-"
NEEDED = {"memory", "pids"}
MARGIN_MB = 64
"""MiB for the first process of a sandbox and for what the kernel keeps."""
END = (
    "/bin/sh",
    "-c",
    'echo 1 > "$0/cgroup.kill"; n=0; until rmdir "$0" || [ $n -ge 200 ]; do n=$((n + 1)); sleep 0.01; done 2>/dev/null',
)
"""Command that ends all processes of the group after it, and removes the group."""


@dataclass(frozen=True)
class ControlGroup:
    """Group of one sandbox.

    Attributes:
        folder: its folder in the file system of control groups.
        entrance: descriptor; a process that writes 0 to it enters the group.
    """

    folder: Path
    entrance: int

    @classmethod
    def make(cls, parent: Path, memory_mb: int, processes: int) -> "ControlGroup":
        """Return a new group.

        Raises:
            OSError: the kernel refuses it.
        """
        remove_abandoned(parent)
        folder = parent / f"{PREFIX}{os.getpid()}-{secrets.token_hex(4)}"
        folder.mkdir()
        limits = {
            "memory.max": f"{memory_mb + MARGIN_MB}M",
            "memory.swap.max": "0",
            "pids.max": f"{processes + 8}",  # threads, the driver and bubblewrap
        }
        for name, value in limits.items():
            if name != "memory.swap.max" or (folder / name).exists():
                (folder / name).write_text(value, encoding="utf-8")
        return cls(folder, os.open(folder / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC))


@cache
def delegated(mount: Path = MOUNT, own: str | None = None) -> Path | None:
    """Return the nearest group, from this process's upwards, in which it may make groups; None without one.

    Args:
        mount: file system of control groups.
        own: path of this process's group below it, as /proc/self/cgroup names it; None reads it.
    """
    if own is None:
        lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
        own = next((line[3:] for line in lines if line.startswith("0::")), "/")
    if not (mount / "cgroup.controllers").is_file():
        return None  # version 1
    here = mount / own.strip("/")
    for folder in (here, *here.parents):
        if not folder.is_relative_to(mount):
            return None
        with suppress(OSError):
            enabled = set((folder / "cgroup.subtree_control").read_text(encoding="utf-8").split())
            if enabled >= NEEDED and os.access(folder, os.W_OK) and os.access(folder / "cgroup.procs", os.W_OK):
                return folder
    return None


def remove_abandoned(parent: Path) -> None:
    """Remove the groups of programs that were killed."""
    for folder in parent.glob(f"{PREFIX}*"):
        if not Path("/proc", folder.name.split("-")[2]).exists():
            with suppress(OSError):
                folder.rmdir()
