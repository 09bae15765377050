"""Kill switch: ends the processes that a run has started at once, and then the run itself."""

import os
import signal
import threading
import time
from contextlib import suppress

import psutil

DEADLINE_S = 4.0
"""Seconds from the kill until this process is killed if it has not ended."""
SWEEP_S = 0.02
"""Pause between two searches for processes; a new environment host takes longer to make its first request."""


def kill_run() -> int:
    """Kill all descendants of this process, interrupt it as Ctrl-C does, and kill it if it does not end in time.

    A thread goes on to kill descendants until this process has ended, since its main thread may start others before
    the interrupt reaches it.

    Returns:
        Number of processes that were killed before this returns.
    """
    killed = kill_descendants()
    os.kill(os.getpid(), signal.SIGINT)
    threading.Thread(target=_sweep, daemon=True).start()
    return killed


def kill_descendants() -> int:
    """Kill the descendants of this process until none is left, and return their number."""
    killed: set[int] = set()
    while alive := [child for child in psutil.Process().children(recursive=True) if _runs(child)]:
        for child in alive:
            with suppress(psutil.NoSuchProcess):
                child.kill()
            killed.add(child.pid)
        time.sleep(SWEEP_S)  # without waiting for them: their exit statuses belong to whoever started them
    return len(killed)


def _sweep() -> None:
    until = time.monotonic() + DEADLINE_S
    while time.monotonic() < until:
        kill_descendants()
        time.sleep(SWEEP_S)
    os.kill(os.getpid(), signal.SIGKILL)


def _runs(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
