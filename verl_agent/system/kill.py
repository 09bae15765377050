"""The kill switch: every process of a run ends within seconds, also if its event loop hangs."""

import logging
import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path

import psutil

from verl_agent.envs.machine.processes import end_descendants

DEADLINE_S = 4.0
"""Seconds from the kill of a run until its process is killed if it has not ended."""
SETTLE_S = 1.0
"""Most seconds in which descendants are killed before this process is ended."""
SWEEP_S = 0.02
"""Pause between two searches for processes; a new environment host takes longer to make its first request."""
MARKER = "VERL_AGENT_KILL_MARKER"
"""Environment variable with the file that a killed command writes, so that the command above it ends too."""
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
    killed = end_descendants(grace_s=0.0, most_s=SETTLE_S, reap=False)
    if left := [child for child in _descendants() if runs(child)]:
        log.warning("these processes could not be killed: %s", ", ".join(map(str, left)))
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Thread(target=_sweep, daemon=True).start()
    return killed


def mark_killed() -> None:
    """Tell the command that runs this one that a person kills it."""
    if MARKER in os.environ:
        with suppress(OSError):  # the command above has ended
            Path(os.environ[MARKER]).touch()


def runs(process: psutil.Process) -> bool:
    """Return True if a process has not ended; True for one that may not be asked."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:
        return True


def _descendants() -> list[psutil.Process]:
    with suppress(psutil.Error):
        return list(psutil.Process().children(recursive=True))
    return []


def _sweep() -> None:
    while True:
        end_descendants(grace_s=0.0, most_s=SETTLE_S, reap=False)
        time.sleep(SWEEP_S)
