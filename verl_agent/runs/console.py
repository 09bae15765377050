"""Keep the terminal for people: what libraries print goes to a log file, ours goes to the terminal."""

import logging
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from omegaconf import DictConfig
from rich.console import Console
from rich.markup import escape

from verl_agent.errors import AgentError, ConfigError
from verl_agent.runs.folder import RunFolder

logger = logging.getLogger(__name__)


def exit_with(run: Callable[[DictConfig], None], config: DictConfig) -> None:
    """Run an entry point, and end the process as a shell expects: 2 for a wrong setting, 130 for Ctrl-C."""
    try:
        run(config)
    except ConfigError as error:
        Console(stderr=True).print(f"[red]error:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


ERROR = re.compile(r"\b\w*(Error|Exception)\b: ")
"""How Python prints the last line of a traceback."""


@contextmanager
def redirect_output(log: Path) -> Iterator[Console]:
    """Send everything that this process and its children print to `log`; yields a console on the terminal.

    File descriptors are redirected, so output of C code and of subprocesses is caught too.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    terminal, errors = os.dup(1), os.dup(2)
    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    try:
        with os.fdopen(terminal, "w", closefd=False) as stream:
            yield Console(file=stream)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os.dup2(terminal, 1)
        os.dup2(errors, 2)
        os.close(terminal)
        os.close(errors)
        if not log.stat().st_size:  # refused before anything ran
            log.unlink()
            with suppress(OSError):  # what else is there stays
                log.parent.rmdir()
                log.parent.parent.rmdir()


@contextmanager
def poll_in_background(look: Callable[[], None], every_s: float) -> Iterator[None]:
    """Call `look` in a thread every `every_s` seconds while the block runs, and once more when it has ended.

    What fails in one look, such as a file that is just being written, is logged, and looked at again the next time.
    """
    over = threading.Event()

    def look_again() -> None:
        try:
            look()
        except (AgentError, OSError, ValueError):
            logger.warning("what the run does could not be looked at", exc_info=True)

    def follow() -> None:
        while not over.wait(every_s):
            look_again()

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        look_again()


@contextmanager
def report_failure(folder: RunFolder, console: Console) -> Iterator[None]:
    """Say how to go on after Ctrl-C, and what the log says after a failure.

    Raises:
        ConfigError: the failure was one that a Ray worker raised on purpose.
    """
    try:
        yield
    except KeyboardInterrupt:
        console.print(f"\nStopped. Run the same command again to go on after step {folder.last_step}.")
        raise
    except Exception as error:  # shown and raised again
        cause = getattr(error, "cause", None) or error
        if isinstance(cause, AgentError):
            raise ConfigError(str(cause)) from error
        console.print(f"[red]The run failed: {type(cause).__name__}[/]. Errors in {folder.log}:")
        console.print(last_errors(folder.log), markup=False, highlight=False)
        raise


def last_errors(log: Path, count: int = 8) -> str:
    """The last lines of a log that name an error, for a person who asks why a run failed."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    errors = [line for line in lines if ERROR.search(line)]
    return "\n".join((errors or lines)[-count:])
