"""End every process that a run started, however it stops."""

import ctypes
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import psutil

PR_SET_CHILD_SUBREAPER = 36
"""Linux, sys/prctl.h: orphaned descendants become children of this process rather than of init."""
GRACE_S = 10
"""Seconds between asking a process to end and killing it."""


@contextmanager
def ending_all_children() -> Iterator[None]:
    """End what is left of this process's descendants when the block is left.

    SIGTERM is treated as Ctrl-C, so the block is left then too. Processes that others started, such as a
    Ray cluster that was running before, are no descendants and stay.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    previous = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
        end([child for child in psutil.Process().children(recursive=True) if child.pid not in before])


def end(processes: list[psutil.Process], grace_s: float = GRACE_S) -> None:
    """Ask the processes to end, and kill those that do not."""
    for process in processes:
        if process.is_running():
            _signal(process, signal.SIGTERM)
    _, alive = psutil.wait_procs(processes, timeout=grace_s)
    for process in alive:
        _signal(process, signal.SIGKILL)
    psutil.wait_procs(alive, timeout=grace_s)


def _signal(process: psutil.Process, number: signal.Signals) -> None:
    try:
        process.send_signal(number)
    except psutil.NoSuchProcess:
        return


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
