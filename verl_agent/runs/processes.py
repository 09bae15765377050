"""Cleanup after a run: its processes are ended and their shared memory is removed."""

import asyncio
import ctypes
import os
import re
import signal
import sys
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import psutil

PR_SET_CHILD_SUBREAPER = 36
"""Linux, sys/prctl.h: orphaned descendants become children of this process rather than of init."""
GRACE_S = 10
"""Seconds between SIGTERM and SIGKILL."""
SEGMENT = re.compile(r"/dev/shm/(?:psm_|sem\.mp-)\w+")
"""Shared memory of Python's multiprocessing. Ray kills the processes that would remove it; an engine has 240 MiB."""
T = TypeVar("T")


class Terminated(KeyboardInterrupt):
    """SIGTERM arrived: whoever sent it, such as a job system, expects the end soon."""


@contextmanager
def ending_all_children() -> Iterator[Callable[[], None]]:
    """End all descendants of this process that the block started and left.

    Yields a function that records the shared memory of the descendants; call it before they end. At the end of the
    block the recorded memory is removed, unless a process still holds it.

    SIGTERM raises `Terminated` in the main thread, so that it ends the block too. Processes that are no descendants
    (for example, a Ray cluster that was running before) are not ended.
    """
    adopt_orphans()
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    recorded: set[Path] = set()

    def started() -> list[psutil.Process]:
        return [child for child in psutil.Process().children(recursive=True) if child.pid not in before]

    previous = signal.signal(signal.SIGTERM, _terminate)
    try:
        yield lambda: recorded.update(shared_memory(started()))
    finally:
        signal.signal(signal.SIGTERM, previous)
        end(started())
        remove_unused(recorded)


def run_ending_all_children(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine as `asyncio.run` does, and end all descendants that it started and left.

    SIGTERM cancels the coroutine, as Ctrl-C does, but also if this process was started to ignore SIGINT. A second one
    does not interrupt its cleanup: some senders signal the process and then its group.

    Raises:
        Terminated: SIGTERM arrived.
        KeyboardInterrupt: Ctrl-C.
    """
    stopped = False

    async def stoppable() -> T:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def stop(number: int, frame: FrameType | None) -> None:
            nonlocal stopped
            if stopped:
                return
            stopped = True
            if asyncio.current_task(loop) is task:  # in a long call without await, such as the start of an engine
                raise Terminated
            task.cancel()
            loop.call_soon_threadsafe(lambda: None)  # wakes the loop

        previous = signal.signal(signal.SIGTERM, stop)
        try:
            return await main
        finally:
            signal.signal(signal.SIGTERM, previous)

    with ending_all_children():
        try:
            return asyncio.run(stoppable())
        except asyncio.CancelledError:
            if stopped:
                raise Terminated from None
            raise


def adopt_orphans() -> None:
    """Make orphaned descendants children of this process, so that it finds them; Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def remove_unused(recorded: set[Path]) -> None:
    """Remove those of the recorded shared-memory files that no process holds any more."""
    for segment in recorded - shared_memory(psutil.process_iter()) if recorded else ():
        segment.unlink(missing_ok=True)


def end(processes: list[psutil.Process], grace_s: float = GRACE_S) -> None:
    """Send SIGTERM to the processes, and SIGKILL to those that still run after `grace_s` seconds."""
    for process in processes:
        if process.is_running():
            _signal(process, signal.SIGTERM)
    _, alive = psutil.wait_procs(processes, timeout=grace_s)
    for process in alive:
        _signal(process, signal.SIGKILL)
    psutil.wait_procs(alive, timeout=grace_s)


def shared_memory(processes: Iterable[psutil.Process]) -> set[Path]:
    """Return the shared-memory files of multiprocessing that the processes hold and this user owns."""
    held: set[Path] = set()
    for process in processes:
        with suppress(OSError):  # the process has ended, or belongs to another user
            held |= set(map(Path, SEGMENT.findall(Path(f"/proc/{process.pid}/maps").read_text())))
    return {path for path in held if path.exists() and path.stat().st_uid == os.getuid()}


def _signal(process: psutil.Process, number: signal.Signals) -> None:
    try:
        process.send_signal(number)
    except psutil.NoSuchProcess:
        return


def _terminate(number: int, frame: FrameType | None) -> None:
    raise Terminated
