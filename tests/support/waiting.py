"""Waiting for a condition, with a limit."""

import subprocess
import time
from collections.abc import Callable
from typing import Any


def wait_until(
    condition: Callable[[], object],
    timeout_s: float = 200.0,
    report: Callable[[], str] = lambda: "timeout",
    running: "subprocess.Popen[Any] | None" = None,
    every_s: float = 0.02,
) -> None:
    """Wait for a condition; fail after the timeout, or if a process ends before.

    Args:
        report: text of the failure.
        running: process without which the condition cannot come true.
    """
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert running is None or running.poll() is None, report()
        assert time.monotonic() < deadline, report()
        time.sleep(every_s)
