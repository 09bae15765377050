"""Run of another command of this package as a child process that ends with this one."""

import ctypes
import signal
import subprocess
import sys
from collections.abc import Sequence

GRACE_S = 10
"""Seconds that a child has to end by itself after Ctrl-C."""
PR_SET_PDEATHSIG = 1
"""Linux, sys/prctl.h: the signal that a child gets when its parent is killed."""
INTERRUPTED = 130
"""Exit status of a command after Ctrl-C."""


def run_command(command: Sequence[str]) -> int:
    """Run a command, whose output goes to the terminal, and return its exit status.

    Raises:
        KeyboardInterrupt: the command, or this process while it waits, was interrupted.
    """
    with subprocess.Popen(command, preexec_fn=_end_with_parent) as child:
        try:
            code = child.wait()
        except KeyboardInterrupt:  # a terminal sends Ctrl-C to the child too; `kill` signals this process alone
            try:
                child.wait(GRACE_S)
            except subprocess.TimeoutExpired:
                child.terminate()
                child.wait()
            raise
    if code == INTERRUPTED:
        raise KeyboardInterrupt
    return code


def _end_with_parent() -> None:
    """Make the child end when this process is killed, so that it does not continue beside a restarted run."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
