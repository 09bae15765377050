"""Ends of processes: those that a run left, and those whose parent has ended."""

import asyncio
import multiprocessing
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.context import SpawnProcess
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import psutil

from verl_agent.envs.machine.processes import adopt_orphans, end_descendants
from verl_agent.system.kill import SETTLE_S

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
        end_descendants(spared=before)
        remove_unused(recorded)


def run_ending_all_children(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine as `asyncio.run` does, and end all descendants that it started and left.

    SIGTERM cancels the coroutine, as Ctrl-C does, but also if this process was started to ignore SIGINT. A second one
    does not interrupt its cleanup: some senders signal the process and then its group. In a long call without await,
    such as the start of an engine, which Ctrl-C ends, too, both raise at once, and so does a later SIGTERM, since a
    library may have lost the first; `asyncio.run` alone would wait for the end of the call.

    Raises:
        Terminated: SIGTERM arrived.
        KeyboardInterrupt: Ctrl-C.
    """
    stopped_at: float | None = None

    async def stoppable() -> T:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        previous = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

        def stop(number: int, frame: FrameType | None) -> None:
            nonlocal stopped_at
            blocks = asyncio.current_task(loop) is task
            if stopped_at is not None and not (blocks and time.monotonic() > stopped_at + SETTLE_S):
                return
            stopped_at = time.monotonic()
            if blocks:
                raise Terminated
            task.cancel()
            loop.call_soon_threadsafe(lambda: None)  # wakes the loop

        def interrupt(number: int, frame: FrameType | None) -> None:
            if asyncio.current_task(loop) is task:
                raise KeyboardInterrupt
            if callable(of_loop := previous[signal.SIGINT]):
                of_loop(number, frame)

        signal.signal(signal.SIGTERM, stop)
        if callable(previous[signal.SIGINT]):  # else it is ignored
            signal.signal(signal.SIGINT, interrupt)
        try:
            return await main
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    with ending_all_children():
        try:
            return asyncio.run(stoppable())
        except asyncio.CancelledError:
            if stopped_at is not None:
                raise Terminated from None
            raise


def remove_unused(recorded: set[Path]) -> None:
    """Remove those of the recorded shared-memory files that no process holds any more."""
    for segment in recorded - shared_memory(psutil.process_iter()) if recorded else ():
        segment.unlink(missing_ok=True)


def shared_memory(processes: Iterable[psutil.Process]) -> set[Path]:
    """Return the shared-memory files of multiprocessing that the processes hold and this user owns."""
    held: set[Path] = set()
    for process in processes:
        with suppress(OSError):  # the process has ended, or belongs to another user
            held |= set(map(Path, SEGMENT.findall(Path(f"/proc/{process.pid}/maps").read_text())))
    return {path for path in held if path.exists() and path.stat().st_uid == os.getuid()}


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


def _terminate(number: int, frame: FrameType | None) -> None:
    raise Terminated


def _die_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        end_descendants(grace_s=0.0, most_s=SETTLE_S, reap=False)
        os.kill(os.getpid(), signal.SIGKILL)
