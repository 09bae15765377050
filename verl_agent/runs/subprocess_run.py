"""Run of another command of this package as a child process that ends with this one."""

import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from verl_agent.runs.processes import Terminated, end_with_parent

GRACE_S = 10
"""Seconds that a child has to end by itself after Ctrl-C."""
INTERRUPTED = 130
"""Exit status of a command after Ctrl-C."""
MARKER = "VERL_AGENT_KILL_MARKER"
"""Environment variable with the file that a killed command writes, so that the command above it ends too."""


def run_command(command: Sequence[str]) -> int:
    """Run a command, whose output goes to the terminal, and return its exit status.

    A command that a person kills (`verl-agent control RUN end`) may end with any status: with that of an error if the
    death of its engine is noticed first, or by SIGKILL if it ignores SIGTERM.

    Raises:
        KeyboardInterrupt: the command, or this process while it waits, was interrupted or killed by a person.
    """
    with tempfile.TemporaryDirectory() as folder:
        marker = Path(folder) / "killed"
        code = _wait(command, os.environ | {MARKER: str(marker)})
        killed = marker.exists()
    if killed:
        mark_killed()
    if killed or code == INTERRUPTED:
        raise KeyboardInterrupt
    return code


def mark_killed() -> None:
    """Tell the command that runs this one that a person kills it."""
    if MARKER in os.environ:
        with suppress(OSError):  # the command above has ended
            Path(os.environ[MARKER]).touch()


def _wait(command: Sequence[str], environment: Mapping[str, str]) -> int:
    with subprocess.Popen(command, env=environment, preexec_fn=end_with_parent) as child:
        try:
            return child.wait()
        except KeyboardInterrupt as error:
            if isinstance(error, Terminated):  # sent to this process alone; a terminal sends Ctrl-C to the child too
                child.terminate()
            try:
                child.wait(GRACE_S)
            except subprocess.TimeoutExpired:
                child.terminate()
                child.wait()
            raise
