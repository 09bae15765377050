"""Supervisor of a run: runs it in a child process, and restarts it from its last checkpoint when a process dies.

The command forks before it imports Ray or torch. The child trains, and starts every other process of the run. The
parent waits for the first process that the run needs and that ends unexpectedly. It names that process, ends the
others and forks again, so that the run resumes as if the command had been given again.
"""

import sys
import textwrap
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from verl_agent.config.plan_parts import Schedule
from verl_agent.envs.machine.processes import adopt_orphans
from verl_agent.errors import AgentError, ConfigError
from verl_agent.oversight.socket import control_socket
from verl_agent.runs.child import STOPPED, Link, StopRequest, fork, stop_signals
from verl_agent.runs.deaths import Death
from verl_agent.runs.folder import RunFolder
from verl_agent.runs.frozen_files import ANSWER_S, NO_ANSWER, answer_within
from verl_agent.runs.hang_watch import HangWatch
from verl_agent.terminal import Console, say

FAILED = 1
"""Exit status of a run that died and is not restarted."""


def supervise(schedule: Schedule) -> tuple[Link, Schedule]:
    """Fork; return in the child, which trains, and fork again from the last checkpoint after the death of a process.

    The parent exits with the child. It does not restart a run that died `trainer.max_restarts` times since its last
    checkpoint, nor one that died before it logged a step.

    Returns:
        The connection to the supervisor, and the schedule, which resumes if this is a restart.
    """
    adopt_orphans()
    restarts, limit, folder = 0, int(schedule.max_restarts or 0), RunFolder.at(schedule.folder)
    hangs = HangWatch(folder.root, schedule.records, float(schedule.hang_timeout_s or 0), _warn)
    with stop_signals() as stop:
        while True:
            before = _progress(folder) or (0, 0)
            hangs.begin()
            child = fork()
            if isinstance(child, Link):
                may_resume = restarts and schedule.resume == "disable"
                return child, replace(schedule, resume="auto") if may_resume else schedule
            with _kill_switch(folder.root, stop):
                death = child.wait(stop, hangs)
            console = Console()
            console.show_cursor(True)
            if death is not None:
                found = partial(child.first_error, death)
                error = answer_within(ANSWER_S, found, "") if not death.node else ""
                say(console, *_describe(death, folder, child.memory.evidence(), error))
            child.end_others()
            if death is None or stop.since_s is not None:
                sys.exit(STOPPED if child.status is None or child.status < 0 else child.status)
            after = _progress(folder)
            if after is None:
                say(console, f"{NO_ANSWER.capitalize()}. Run the same command again when it does.")
                sys.exit(FAILED)
            step = after[0]
            restarts = 1 if step > before[0] else restarts + 1
            if after == before and limit:
                why = "The run is not restarted, because it died before its first step."
            elif restarts > limit:
                why = f"trainer.max_restarts={limit} allows no further restart without a new checkpoint."
            else:
                say(console, f"Restart {restarts} of {limit}: the run resumes after step {step}.")
                continue
            say(console, f"{why} Run the same command again to resume after step {step}.")
            sys.exit(FAILED)


@contextmanager
def _kill_switch(folder: Path, stop: StopRequest) -> Iterator[None]:
    """Let a person end the run over the control socket in its folder while the block runs."""

    def handle(command: Mapping[str, Any]) -> dict[str, Any]:
        if command["command"] != "end":
            raise ConfigError(
                f"{command['command']!r} is not possible while a run trains, whose episodes are in other processes. "
                "Allowed: end, and read, which shows them."
            )
        stop.since_s = stop.since_s or time.monotonic()  # the death that follows is no reason for a restart
        return {"ended": True}

    is_new = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:  # the child checks the folder and reports what is wrong with it
        yield
        return
    try:
        with control_socket(folder, handle):
            yield
    finally:
        if is_new:
            with suppress(OSError):  # the run has begun, so the folder has its files
                folder.rmdir()


def _warn(text: str) -> None:
    say(Console(), (text, "yellow"))


def _progress(folder: RunFolder) -> tuple[int, int] | None:
    """Return the step of the last checkpoint and the size of the metrics files, zeros for a folder that is not there.

    None if the file system does not answer.
    """

    def read() -> tuple[int, int]:
        try:
            return folder.last_step, sum(path.stat().st_size for path in folder.all_metrics)
        except (AgentError, OSError, ValueError):  # the child checks the folder and reports what is wrong with it
            return 0, 0

    return answer_within(ANSWER_S, read, None)


def _describe(death: Death, folder: RunFolder, lack: str, error: str) -> tuple[tuple[str, str], str]:
    """Return the parts of the message about a death, which the run's log gets too."""
    log = answer_within(ANSWER_S, lambda: max(folder.log.parent.glob("*.log"), default=folder.log), folder.log)
    cause = lack or (
        f"Its first error:\n{textwrap.indent(error, '  ')}\n" if error else "" if death.cause else "It wrote no error."
    )

    def write() -> None:
        with suppress(OSError), log.open("a") as file:
            file.write(f"{death} {cause}\n")

    answer_within(ANSWER_S, write, None)
    return (str(death), "red"), f" {cause}{'' if cause.endswith(chr(10)) else ' '}Log: {log}"
