"""Supervisor of a run: runs it in a child process, and restarts it from its last checkpoint when a process dies.

The command forks before it imports Ray or torch. The child trains, and starts every other process of the run. The
parent waits for the first process that the run needs and that ends unexpectedly. It names that process, ends the
others and forks again, so that the run resumes as if the command had been given again.
"""

import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from rich.console import Console
from rich.markup import escape

from verl_agent.errors import ConfigError
from verl_agent.runs.child import STOPPED, Link, StopRequest, fork, stop_signals
from verl_agent.runs.control.server import control_socket
from verl_agent.runs.deaths import Death
from verl_agent.runs.folder import RunFolder
from verl_agent.runs.frozen_files import ANSWER_S, NO_ANSWER, answer_within
from verl_agent.runs.hang_watch import HangWatch
from verl_agent.runs.processes import adopt_orphans

FAILED = 1
"""Exit status of a run that died and is not restarted."""


def supervise(run: Callable[[Link], None], config: DictConfig) -> None:
    """Call `run` in a child process; restart it from its last checkpoint after the death of a process.

    Returns in the child when `run` has returned, and exits in the parent. The parent does not restart a run that died
    `trainer.max_restarts` times since its last checkpoint, nor one that died before it logged a step.

    Args:
        run: trains to the end of `config`; it needs to resume from its folder when it is called again.
    """
    adopt_orphans()
    restarts, hangs = 0, _hang_watch(config)
    with stop_signals() as stop:
        while True:
            before = _progress(config) or (0, 0)
            if hangs is not None:
                hangs.begin()
            child = fork()
            if isinstance(child, Link):
                run(child)
                return
            with _kill_switch(config, stop):
                death = child.wait(stop, hangs)
            console = Console()
            console.show_cursor(True)
            if death is not None:
                _print(
                    console,
                    _describe(
                        death,
                        config,
                        child.memory.evidence(),
                        answer_within(ANSWER_S, partial(child.first_error, death), "") if not death.node else "",
                    ),
                )
            child.end_others()
            if death is None or stop.since_s is not None:
                sys.exit(STOPPED if child.status is None or child.status < 0 else child.status)
            after = _progress(config)
            if after is None:
                _print(console, f"{NO_ANSWER.capitalize()}. Run the same command again when it does.")
                sys.exit(FAILED)
            step = after[0]
            restarts = 1 if step > before[0] else restarts + 1
            limit = int(config.trainer.max_restarts)
            if after == before and limit:
                why = "The run is not restarted, because it died before its first step."
            elif restarts > limit:
                why = f"trainer.max_restarts={limit} allows no further restart without a new checkpoint."
            else:
                _print(console, f"Restart {restarts} of {limit}: the run resumes after step {step}.")
                if config.trainer.resume_mode == "disable":
                    config.trainer.resume_mode = "auto"
                continue
            _print(console, f"{why} Run the same command again to resume after step {step}.")
            sys.exit(FAILED)


@contextmanager
def _kill_switch(config: DictConfig, stop: StopRequest) -> Iterator[None]:
    """Let a person end the run over the control socket in its folder while the block runs."""

    def handle(command: Mapping[str, Any]) -> dict[str, Any]:
        if command["command"] != "end":
            raise ConfigError(
                f"{command['command']!r} is not possible while a run trains, whose episodes are in other processes. "
                "Allowed: end."
            )
        stop.since_s = stop.since_s or time.monotonic()  # the death that follows is no reason for a restart
        return {"ended": True}

    try:
        folder = RunFolder.at(config.trainer.default_local_dir).root
        is_new = not folder.exists()
        folder.mkdir(parents=True, exist_ok=True)
    except Exception:  # boundary: the child checks the config and reports what is wrong with it
        yield
        return
    try:
        with control_socket(folder, handle):
            yield
    finally:
        if is_new:
            with suppress(OSError):  # the run has begun, so the folder has its files
                folder.rmdir()


def _hang_watch(config: DictConfig) -> HangWatch | None:
    """Return the watch on the progress of a run; None before its checks."""
    try:
        folder = RunFolder.at(config.trainer.default_local_dir).root
        records = Path(config.episode.record_dir or folder / "episodes")
        return HangWatch(folder, records, float(config.trainer.hang_timeout_s), _warn)
    except Exception:  # boundary: the child checks the config and reports what is wrong with it
        return None


def _warn(text: str) -> None:
    _print(Console(), f"[yellow]{escape(text)}[/]")


def _progress(config: DictConfig) -> tuple[int, int] | None:
    """Return the step of the last checkpoint and the size of the metrics files, zeros before the checks of the run.

    None if the file system does not answer.
    """

    def read() -> tuple[int, int]:
        try:
            folder = RunFolder.at(config.trainer.default_local_dir)
            return folder.last_step, sum(path.stat().st_size for path in folder.all_metrics)
        except Exception:  # boundary: the child checks the config and reports what is wrong with it
            return 0, 0

    return answer_within(ANSWER_S, read, None)


def _describe(death: Death, config: DictConfig, lack: str, error: str) -> str:
    """Return the message about a death, which the run's log gets too."""
    folder = RunFolder.at(config.trainer.default_local_dir)
    log = answer_within(ANSWER_S, lambda: max(folder.log.parent.glob("*.log"), default=folder.log), folder.log)
    cause = lack or (
        f"Its first error:\n{textwrap.indent(error, '  ')}\n" if error else "" if death.cause else "It wrote no error."
    )

    def write() -> None:
        with suppress(OSError), log.open("a") as file:
            file.write(f"{death} {cause}\n")

    answer_within(ANSWER_S, write, None)
    return (
        f"[red]{escape(str(death))}[/] {escape(cause)}{'' if cause.endswith(chr(10)) else ' '}Log: {escape(str(log))}"
    )


def _print(console: Console, text: str) -> None:
    console.print(text, highlight=False, soft_wrap=True)
