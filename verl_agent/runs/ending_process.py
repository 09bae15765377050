"""Processes of `multiprocessing` that end with the process that started them, also after its SIGKILL."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.context import SpawnProcess

from verl_agent.runs.control.kill import kill_descendants


class EndingProcess(SpawnProcess):
    """Spawned process that kills its descendants and itself when its parent has ended.

    A thread waits for the end of the pipe that only the parent holds open. The kernel's own signal for this
    (`PR_SET_PDEATHSIG`) is sent at the end of the parent's thread, which may come long before that of the parent.
    """

    def run(self) -> None:
        """Start the thread, then run the target of the process."""
        threading.Thread(target=_end_with_parent, name="EndWithParent", daemon=True).start()
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


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        kill_descendants()
        os.kill(os.getpid(), signal.SIGKILL)
