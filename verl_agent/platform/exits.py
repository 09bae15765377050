"""Exit status of the processes of an engine, which only the process that has started them can learn."""

import os
import re
import signal
import threading
import time
from collections.abc import Iterable
from multiprocessing import connection
from multiprocessing.process import BaseProcess

KILLED = re.compile(r"process (\d+) (was killed by signal \d+(?: \(SIG\w+\))?)")
"""Line of `report_kills`: number of the process, and cause of its end."""
STOPS = (signal.SIGTERM, signal.SIGINT)
"""Signals by which engines end their own processes."""
REAP_S = 2.0
"""Seconds in which the status of a process that has ended is known."""


def describe_status(status: int) -> str:
    """Return the cause in the exit status of a child process, negative for a signal as in `subprocess`."""
    if status >= 0:
        return f"ended with exit code {status}"
    try:
        return f"was killed by signal {-status} ({signal.Signals(-status).name})"
    except ValueError:  # a real-time signal, most of which have no name
        return f"was killed by signal {-status}"


def wait_for_status(processes: Iterable[BaseProcess], timeout_s: float | None = None) -> tuple[int, int] | None:
    """Wait for the first of some children to end, and return its number and status as in `subprocess`.

    Returns:
        None if none has ended in time, or its status is unknown.
    """
    by_sentinel = {process.sentinel: process for process in processes}
    ended = [by_sentinel[one] for one in connection.wait(list(by_sentinel), timeout_s) if isinstance(one, int)]
    deadline = time.monotonic() + REAP_S
    while ended and time.monotonic() < deadline:
        if (status := ended[0].exitcode) is not None:
            return ended[0].pid or 0, status
        time.sleep(0.01)  # it is a zombie soon, or another thread reaps it
    return None


def report_kills(processes: Iterable[BaseProcess]) -> None:
    """Write a line to the standard error if the first of these children that ends was killed, other than to stop it.

    The supervisor of a run cannot see how a process ended that it has not started. It reads this line.
    """
    watched = list(processes)

    def report() -> None:
        found = wait_for_status(watched)
        if found is not None and found[1] < 0 and -found[1] not in STOPS:
            os.write(2, f"process {found[0]} {describe_status(found[1])}\n".encode())

    if watched:
        threading.Thread(target=report, daemon=True).start()
