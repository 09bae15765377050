"""End every process that a run started, however it stops, and free the shared memory that they leave."""

import ctypes
import os
import re
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

import psutil

PR_SET_CHILD_SUBREAPER = 36
"""Linux, sys/prctl.h: orphaned descendants become children of this process rather than of init."""
GRACE_S = 10
"""Seconds between asking a process to end and killing it."""
SEGMENT = re.compile(r"/dev/shm/(?:psm_|sem\.mp-)\w+")
"""Shared memory of Python's multiprocessing. Ray kills the processes that would remove it (a vLLM engine has 240 MiB,
most of them never written)."""


@contextmanager
def ending_all_children() -> Iterator[Callable[[], None]]:
    """End what is left of this process's descendants when the block is left.

    Yields a function that notes which shared memory the descendants hold, to be called before they end; at the end
    it is removed, unless some process still holds it.

    SIGTERM is treated as Ctrl-C, so the block is left then too. Processes that others started, such as a
    Ray cluster that was running before, are no descendants and stay.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    noted: set[Path] = set()

    def started() -> list[psutil.Process]:
        return [child for child in psutil.Process().children(recursive=True) if child.pid not in before]

    previous = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield lambda: noted.update(shared_memory(started()))
    finally:
        signal.signal(signal.SIGTERM, previous)
        end(started())
        for segment in noted - shared_memory(psutil.process_iter()) if noted else ():
            segment.unlink(missing_ok=True)


def end(processes: list[psutil.Process], grace_s: float = GRACE_S) -> None:
    """Ask the processes to end, and kill those that do not."""
    for process in processes:
        if process.is_running():
            _signal(process, signal.SIGTERM)
    _, alive = psutil.wait_procs(processes, timeout=grace_s)
    for process in alive:
        _signal(process, signal.SIGKILL)
    psutil.wait_procs(alive, timeout=grace_s)


def shared_memory(processes: Iterable[psutil.Process]) -> set[Path]:
    """Files of shared memory of multiprocessing that some of the processes hold and that belong to this user."""
    held: set[Path] = set()
    for process in processes:
        with suppress(OSError):  # it has ended, or is another user's
            held |= set(map(Path, SEGMENT.findall(Path(f"/proc/{process.pid}/maps").read_text())))
    return {path for path in held if path.exists() and path.stat().st_uid == os.getuid()}


def _signal(process: psutil.Process, number: signal.Signals) -> None:
    try:
        process.send_signal(number)
    except psutil.NoSuchProcess:
        return


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
