"""Ends of processes: those that a run left, those of a run that a person kills, and those whose parent has ended."""

import asyncio
import ctypes
import logging
import multiprocessing
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.context import SpawnProcess
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import psutil

PR_SET_PDEATHSIG = 1
"""Linux, sys/prctl.h: the kernel sends a signal to this process when the thread that started it ends."""
PR_SET_CHILD_SUBREAPER = 36
"""Linux, sys/prctl.h: orphaned descendants become children of this process rather than of init."""
GRACE_S = 10
"""Seconds between SIGTERM and SIGKILL."""
SEGMENT = re.compile(r"/dev/shm/(?:psm_|sem\.mp-)\w+")
"""Shared memory of Python's multiprocessing. Ray kills the processes that would remove it; an engine has 240 MiB."""
DEADLINE_S = 4.0
"""Seconds from the kill of a run until its process is killed if it has not ended."""
SETTLE_S = 1.0
"""Most seconds in which descendants are killed before this process is ended."""
SWEEP_S = 0.02
"""Pause between two searches for processes; a new environment host takes longer to make its first request."""
T = TypeVar("T")
log = logging.getLogger(__name__)


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


def end_with_parent(number: int = signal.SIGTERM) -> None:
    """Let the kernel send a signal to this process when its parent ends, also after a SIGKILL; Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number, 0, 0, 0)


def remove_unused(recorded: set[Path]) -> None:
    """Remove those of the recorded shared-memory files that no process holds any more."""
    for segment in recorded - shared_memory(psutil.process_iter()) if recorded else ():
        segment.unlink(missing_ok=True)


def runs(process: psutil.Process) -> bool:
    """Return True if a process has not ended; True for one that may not be asked."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:
        return True


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


def kill_run() -> int:
    """Kill all descendants of this process, end it by SIGTERM, and kill it if it does not end in time.

    Not by SIGINT, which processes ignore that a script started in the background (`nohup`, cron).

    A thread goes on to kill descendants until this process has ended, since its main thread may start others before
    the signal reaches it. The deadline begins at once, so a process that cannot be killed delays nothing.

    Returns:
        Number of processes that were killed before this returns.
    """
    deadline = threading.Timer(DEADLINE_S, os.kill, (os.getpid(), signal.SIGKILL))
    deadline.daemon = True
    deadline.start()
    killed = kill_descendants()
    if left := [child for child in _descendants() if runs(child)]:
        log.warning("these processes could not be killed: %s", ", ".join(map(str, left)))
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Thread(target=_sweep, daemon=True).start()
    return killed


def kill_descendants() -> int:
    """Kill the descendants of this process until none is left or `SETTLE_S` is over, and return the number killed.

    A process of another user, such as a sandbox with its own rights, and one that waits in the kernel may be left.
    """
    killed: set[int] = set()
    until = time.monotonic() + SETTLE_S
    while alive := [child for child in _descendants() if runs(child)]:
        for child in alive:
            try:
                child.kill()
            except psutil.Error:  # it has ended, or belongs to another user
                continue
            killed.add(child.pid)
        if time.monotonic() > until:
            break
        time.sleep(SWEEP_S)  # without waiting for them: their exit statuses belong to whoever started them
    return len(killed)


class EndingProcess(SpawnProcess):
    """Spawned process that kills its descendants and itself when its parent has ended.

    A thread waits for the end of the pipe that only the parent holds open. The signal of `end_with_parent` is sent at
    the end of the parent's thread, which may come long before that of the parent.
    """

    def run(self) -> None:
        """Start the thread, then run the target of the process."""
        threading.Thread(target=_die_with_parent, name="EndWithParent", daemon=True).start()
        super().run()


@contextmanager
def spawning_ending_processes() -> Iterator[None]:
    """Make `Process` of the spawn context an `EndingProcess` while the block runs.

    For libraries that start processes by `multiprocessing.get_context("spawn").Process`. The context is one object for
    the whole program, so processes that other threads start meanwhile end with this one too.
    """
    context = multiprocessing.get_context("spawn")
    context.Process = EndingProcess  # type: ignore[misc]  # shadows the attribute of the class
    try:
        yield
    finally:
        del context.Process


def _signal(process: psutil.Process, number: signal.Signals) -> None:
    try:
        process.send_signal(number)
    except psutil.NoSuchProcess:
        return


def _terminate(number: int, frame: FrameType | None) -> None:
    raise Terminated


def _descendants() -> list[psutil.Process]:
    with suppress(psutil.Error):
        return list(psutil.Process().children(recursive=True))
    return []


def _sweep() -> None:
    while True:
        kill_descendants()
        time.sleep(SWEEP_S)


def _die_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        kill_descendants()
        os.kill(os.getpid(), signal.SIGKILL)
