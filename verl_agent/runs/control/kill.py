"""Kill switch: ends the processes that a run has started at once, and then the run itself."""

import logging
import os
import signal
import threading
import time
from contextlib import suppress

import psutil

DEADLINE_S = 4.0
"""Seconds from the kill until this process is killed if it has not ended."""
SETTLE_S = 1.0
"""Most seconds in which descendants are killed before this process is ended."""
SWEEP_S = 0.02
"""Pause between two searches for processes; a new environment host takes longer to make its first request."""
log = logging.getLogger(__name__)


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
    if left := [child for child in _descendants() if _runs(child)]:
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
    while alive := [child for child in _descendants() if _runs(child)]:
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


def _descendants() -> list[psutil.Process]:
    with suppress(psutil.Error):
        return list(psutil.Process().children(recursive=True))
    return []


def _sweep() -> None:
    while True:
        kill_descendants()
        time.sleep(SWEEP_S)


def _runs(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:
        return True
