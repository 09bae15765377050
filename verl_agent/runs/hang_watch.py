"""Watch on the progress of a run; it reports a phase that takes far longer than before, in which a process hangs.

The trainer marks the beginning of each phase of a step in a file, and finished episodes are progress too while a phase
waits for them. The file is in the folder of the run, which all its machines share.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

from verl_agent.platform.stacks import DUMP_S, stacks_file, write_stacks
from verl_agent.runs.deaths import Death, command_line, name_actor, name_process
from verl_agent.runs.frozen_files import NO_ANSWER, Reader, answer_within

PHASE_FILE = ".phase"
START = "starting"
PLAYING = ("playing episodes", "validating")
"""Phases in which a finished episode is progress."""
FACTOR, UNMEASURED = 5, 6
"""Deadline of a phase in its longest time between two signs of progress; of one that never ended, in the setting."""
LOOK_S = 2.0
PAUSE_S = 60.0
"""Time between two looks from which on the watch itself was paused, with the whole job (`docker pause`, Slurm)."""
STATES = {
    psutil.STATUS_STOPPED: "is stopped by a signal",
    psutil.STATUS_TRACING_STOP: "is stopped by a debugger",
    psutil.STATUS_DISK_SLEEP: "waits in the kernel for a disk or a device",
}
"""States in which a process cannot make progress, those that explain a hang first."""


def mark_phase(run: Path, phase: str) -> None:
    """Mark the beginning of a phase."""
    with suppress(OSError):  # a full disk ends the run where it needs the disk
        (run / PHASE_FILE).write_text(phase, encoding="utf-8")


class HangWatch:
    """Watch on the progress of a run over all its restarts.

    The first time without progress after the deadline of a phase is a warning, twice the deadline is a hang.

    Args:
        timeout_s: least deadline in seconds; 0 to watch nothing.
        look_s: seconds between two looks at the files.
    """

    def __init__(
        self, run: Path, records: Path, timeout_s: float, warn: Callable[[str], None], look_s: float = LOOK_S
    ) -> None:
        self._run, self._records, self._timeout_s, self._warn, self._look_s = run, records, timeout_s, warn, look_s
        self._longest_s: dict[str, float] = {}
        self._ended: set[str] = set()
        self._bytes, self._mark = 0, ("", 0)
        self._reader = Reader()
        self.begin()

    def begin(self) -> None:
        """Begin to watch a start of the run."""
        self._phase, self._warned = START, False
        self._mark = self._read_mark()
        self._sign = (self._mark, 0)
        self._since_s = self._looked_s = time.monotonic()

    def check(self, root: psutil.Process) -> Death | None:
        """Return the process that hangs; None while there is progress, or still time for it."""
        now_s = time.monotonic()
        if not self._timeout_s or now_s - self._looked_s < self._look_s:
            return None
        if (gap_s := now_s - self._looked_s) > PAUSE_S:
            self._since_s += gap_s
        self._looked_s = now_s
        mark = self._read_mark()
        phase = self._phase if mark == self._mark else mark[0]
        sign = (mark, self._played() if phase in PLAYING else 0)
        if sign != self._sign:
            self._longest_s[self._phase] = max(now_s - self._since_s, self._longest_s.get(self._phase, 0.0))
            if mark != self._mark:
                self._ended.add(self._phase)
            self._sign, self._mark, self._phase, self._since_s, self._warned = sign, mark, phase, now_s, False
            return None
        waited_s, deadline_s = now_s - self._since_s, self._deadline_s()
        if waited_s > 2 * deadline_s and self._warned:
            self._longest_s[phase] = waited_s / FACTOR  # if this was no hang: the next deadline is twice as long
            hung = find_hung(root, phase)
            files = f", and {NO_ANSWER}" if self._reader.waits else ""
            cause = f"{hung.cause}: no progress for {waited_s:.0f} s while {phase}{files}"
            return Death(hung.name, hung.pid, cause=cause)
        if waited_s > deadline_s and not self._warned:
            self._warned = True
            hung = find_hung(root, phase)
            self._warn(
                f"No progress for {waited_s:.0f} s while {phase}, whose deadline is {deadline_s:.0f} s. {hung} Stacks "
                f"of all processes: {self._dump(root)}. Without progress the run restarts in {deadline_s:.0f} s "
                "(trainer.hang_timeout_s)."
            )
        return None

    def _deadline_s(self) -> float:
        known_s = FACTOR * self._longest_s.get(self._phase, 0.0)
        return max(known_s, self._timeout_s * (1 if self._phase in self._ended else UNMEASURED))

    def _read_mark(self) -> tuple[str, int]:
        file = self._run / PHASE_FILE

        def read() -> tuple[str, int]:
            try:
                return file.read_text(encoding="utf-8"), file.stat().st_mtime_ns
            except OSError:
                return "", 0

        return self._reader.ask(read, self._mark)

    def _played(self) -> int:
        """Return the bytes of all recorded episodes."""

        def count() -> int:
            try:
                return sum(file.stat().st_size for file in self._records.rglob("*.jsonl"))
            except OSError:  # a file is removed
                return self._bytes

        self._bytes = self._reader.ask(count, self._bytes)
        return self._bytes

    def _dump(self, root: psutil.Process) -> str:
        """Write the stacks of the run's named processes and return their file, or the reason without one."""
        file = stacks_file(self._run)

        def write() -> str:
            try:
                write_stacks(file, named_processes(root))
            except OSError as error:
                return f"not written ({error})"
            return str(file)

        return answer_within(2 * DUMP_S, write, NO_ANSWER)


def find_hung(root: psutil.Process, phase: str) -> Death:
    """Return the process that most likely hangs, with its state as the cause.

    That is one which cannot run; else the engine in a phase that plays; else a Ray actor in a call; else the driver.
    """
    processes = named_processes(root)
    states = {process: _status(process) for _, process in processes}
    for state, words in STATES.items():
        for name, process in processes:
            if states[process] == state:
                return Death(name, process.pid, cause=words)
    of_engine = [one for one in processes if "engine" in one[0]]
    in_call = [one for one in processes if name_actor(command_line(one[1])) and "." in command_line(one[1])]
    name, process = ((of_engine if phase in PLAYING else in_call) or processes[:1])[0]
    return Death(name, process.pid, cause="may hang")


def named_processes(root: psutil.Process) -> list[tuple[str, psutil.Process]]:
    """Return name and process of the driver and of each descendant that the run needs."""
    found = [("the driver of the run", root)]
    for process in root.children(recursive=True):
        line = command_line(process)
        if name := name_process(line) or name_actor(line):
            found.append((name, process))
    return found


def _status(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        return str(process.status())
    return ""
