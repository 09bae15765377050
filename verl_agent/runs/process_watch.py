"""Watch on the processes below one process; it reports the first one that ends although the run needs it."""

import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from verl_agent.runs.deaths import PROCESSES, Death, command_line, name_actor, name_process
from verl_agent.system.kill import runs

SCAN_S = 1.0
"""Seconds between two searches for new processes; known ones are checked at every call."""


class ProcessWatch:
    """Watch on the engines and Ray services that a process has started, directly or not.

    Ray actors are watched by `verl_agent.training.actor_watch`, because only Ray knows which of them ended on purpose.
    """

    def __init__(self, root: psutil.Process) -> None:
        self._root = root
        self._known: dict[psutil.Process, str] = {}
        self._starters: dict[psutil.Process, Starter] = {}
        self._outputs: dict[int, list[Path]] = {}
        self._scanned_s = 0.0

    def check(self) -> Death | None:
        """Return a death since the last call; of several, the one that explains the others.

        An engine ends with the Ray actor that started it, and Ray may report the actor's death later.
        """
        ended = [process for process in self._known if not runs(process)]
        if ended:
            ranks = [name for _, name in PROCESSES]
            first = min(ended, key=lambda process: ranks.index(self._known[process]))
            death = Death(self._known[first], first.pid)
            starter = self._starters.get(first)
            if starter is not None and not runs(starter.process):
                death = Death(starter.name, starter.process.pid)
            for process in ended:
                del self._known[process]
            return death
        if time.monotonic() - self._scanned_s > SCAN_S:
            self._scan()
            self._scanned_s = time.monotonic()
        return None

    def outputs(self, pid: int) -> list[Path]:
        """Return the files with the output of a process that runs or has ended; none if it has no files of its own."""
        return self._outputs.get(pid, [])

    def _scan(self) -> None:
        found: dict[psutil.Process, Found] = {}
        shared = output_files(self._root.pid) | output_files(os.getpid())
        with suppress(psutil.NoSuchProcess):
            for process in self._root.children(recursive=True):
                with suppress(psutil.Error):
                    if files := output_files(process.pid) - shared:
                        self._outputs[process.pid] = sorted(files, reverse=True)
                    line = " ".join(process.cmdline())
                    if name_process(line) is not None:
                        found[process] = Found(line, process.pid, process.ppid(), process.create_time())
        for process, seen in found.items():
            name = name_process(seen.command_line)
            if name is not None and not any(seen.is_copy_of(other) for other in found.values()):
                self._known[process] = name
                if process not in self._starters and (starter := _starter(process)) is not None:
                    self._starters[process] = starter


@dataclass(frozen=True, slots=True)
class Found:
    """A process as one scan has found it."""

    command_line: str
    pid: int
    parent: int
    created_s: float

    def is_copy_of(self, other: "Found") -> bool:
        """Return True if this process was forked by `other` and has not yet started its own program.

        Such a copy has the command line of the original. Ray forks twice: its copy then has the parent of the original.
        """
        same_parent = self.parent == other.parent and other.created_s < self.created_s
        return self.command_line == other.command_line and (self.parent == other.pid or same_parent)


@dataclass(frozen=True, slots=True)
class Starter:
    """The Ray actor that started a process, and its plain name."""

    process: psutil.Process
    name: str


def _starter(process: psutil.Process) -> Starter | None:
    with suppress(psutil.Error):
        for parent in process.parents():
            if (name := name_actor(command_line(parent))) is not None:
                return Starter(parent, name)
    return None


def output_files(pid: int) -> set[Path]:
    """Return the files that a process has as its standard output and error."""
    files = set()
    for number in (1, 2):
        with suppress(OSError):  # the process has ended
            files.add(Path(f"/proc/{pid}/fd/{number}").readlink())
    return {file for file in files if file.is_file()}
