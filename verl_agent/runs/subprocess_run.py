"""Run of another command of this package as a child process that ends with this one."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from verl_agent.config.keys import literal
from verl_agent.envs.machine.processes import end_with_parent
from verl_agent.runs.processes import Terminated
from verl_agent.system.kill import MARKER, mark_killed

GRACE_S = 10
"""Seconds that a child has to end by itself after Ctrl-C."""
INTERRUPTED = 130
"""Exit status of a command after Ctrl-C."""


def recipe_command(
    module: str, recipe: Path, overrides: Sequence[str] = (), values: Mapping[str, Any] = MappingProxyType({})
) -> list[str]:
    """Return the command line that runs a recipe in a process of its own.

    Args:
        module: module in `verl_agent.commands`.
        overrides: overrides as on the command line.
        values: further settings, by dotted key.
    """
    file = recipe.resolve()  # also of a link: the recipes that it includes lie beside the file itself
    location = ["--config-dir", str(file.parent), "--config-name", file.stem]
    given = [*overrides, *(f"{key}={literal(value)}" for key, value in values.items())]
    return [sys.executable, "-m", f"verl_agent.commands.{module}", *location, *given]


def run_command(command: Sequence[str], without: Collection[str] = ()) -> int:
    """Run a command, whose output goes to the terminal, and return its exit status.

    A command that a person kills (`verl-agent control RUN end`) may end with any status: with that of an error if the
    death of its engine is noticed first, or by SIGKILL if it ignores SIGTERM.

    Args:
        without: environment variables that the command does not get.

    Raises:
        KeyboardInterrupt: the command, or this process while it waits, was interrupted or killed by a person.
    """
    with tempfile.TemporaryDirectory() as folder:
        marker = Path(folder) / "killed"
        inherited = {name: value for name, value in os.environ.items() if name not in without}
        code = _wait(command, inherited | {MARKER: str(marker)})
        killed = marker.exists()
    if killed:
        mark_killed()
    if killed or code == INTERRUPTED:
        raise KeyboardInterrupt
    return code


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
                try:
                    child.wait(3 * GRACE_S)
                except subprocess.TimeoutExpired:
                    child.kill()
            raise
