"""Terminal output of a run: its own messages go to the terminal, the output of libraries to a log file."""

import errno
import logging
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from shutil import disk_usage

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column

from verl_agent.errors import AgentError, ConfigError
from verl_agent.runs.first_error import first_error_in
from verl_agent.runs.folder import RunFolder
from verl_agent.terminal import Console, say, say_error

logger = logging.getLogger(__name__)


FULL = (errno.ENOSPC, errno.EDQUOT)
"""Error codes of a write to a full disk, or beyond a quota."""


@contextmanager
def exiting() -> Iterator[None]:
    """Exit with status 2 after a `ConfigError` or on a full disk in the block, and with 130 after Ctrl-C."""
    try:
        with explaining_full_disk():
            yield
    except ConfigError as error:
        say_error(str(error))
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


@contextmanager
def explaining_full_disk(folder: Path | None = None) -> Iterator[None]:
    """Turn an error of a full disk into a message.

    Args:
        folder: folder to which the block writes: on a full disk some libraries raise errors that do not say so.

    Raises:
        ConfigError: the disk is full.
    """
    try:
        yield
    except AgentError:  # explained already
        raise
    except Exception as error:  # another error propagates
        if not (any(map(_of_full_disk, _chain(error))) or (folder is not None and not disk_usage(folder).free)):
            raise
        files = (getattr(one, "filename", None) for one in _chain(error))
        where = next((f" of {file}" for file in files if file), "")
        where = where or (f" of {folder}" if folder else "")
        raise ConfigError(
            f"no space is left on the disk{where}. Free some space and run the same command again to resume."
        ) from error


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and its causes; Ray keeps the error of a worker in an attribute."""
    while error is not None:
        yield error
        error = getattr(error, "cause", None) or error.__cause__ or error.__context__


def _of_full_disk(error: BaseException) -> bool:
    return (isinstance(error, OSError) and error.errno in FULL) or os.strerror(errno.ENOSPC) in str(error)


ERROR = re.compile(r"\b\w*(Error|Exception)\b: ")
"""Last line of a Python traceback."""


@contextmanager
def redirect_output(log: Path) -> Iterator[Console]:
    """Redirect the output of this process and its children to `log`, and yield a console on the terminal.

    File descriptors are redirected, which includes the output of C code and of subprocesses.
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
        for output in (sys.stdout, sys.stderr):
            with suppress(OSError):  # the disk of the log is full
                output.flush()
        os.dup2(terminal, 1)
        os.dup2(errors, 2)
        os.close(terminal)
        os.close(errors)
        if not log.stat().st_size:  # stopped before anything ran
            log.unlink()
            with suppress(OSError):  # the folders hold other files
                log.parent.rmdir()
                log.parent.parent.rmdir()


def progress_bar(console: Console, unit: str, disable: bool = False) -> Progress:
    """Return a progress bar for terminals from 80 columns: the description wraps, counts and times are never cut."""
    return Progress(
        TextColumn("{task.description}", markup=False, table_column=Column()),
        BarColumn(None, table_column=Column(max_width=20)),
        MofNCompleteColumn(table_column=Column(no_wrap=True)),
        TextColumn(unit),
        TimeElapsedColumn(table_column=Column(no_wrap=True)),
        TextColumn("left"),
        TimeRemainingColumn(table_column=Column(no_wrap=True)),
        console=console,
        disable=disable,
        redirect_stdout=False,  # output of libraries belongs in the log
        redirect_stderr=False,
    )


@contextmanager
def poll_in_background(poll: Callable[[], None], every_s: float) -> Iterator[None]:
    """Call `poll` in a thread every `every_s` seconds while the block runs, and once more when it has ended.

    A failed poll (for example, a half-written file) is logged; the next poll retries.
    """
    ended = threading.Event()

    def poll_once() -> None:
        try:
            poll()
        except (AgentError, OSError, ValueError):
            logger.warning("polling the run failed", exc_info=True)

    def poll_until_ended() -> None:
        while not ended.wait(every_s):
            poll_once()

    thread = threading.Thread(target=poll_until_ended, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        poll_once()


@contextmanager
def report_failure(folder: RunFolder, console: Console) -> Iterator[None]:
    """Print how to resume after Ctrl-C, or the cause and the errors in the log after a failure.

    Raises:
        ConfigError: a Ray worker raised an error of this package, or the disk is full.
    """
    try:
        with explaining_full_disk(folder.root):
            yield
    except KeyboardInterrupt:
        say(console, f"\nStopped. Run the same command again to resume after step {folder.last_step}.")
        raise
    except Exception as error:  # shown and raised again
        cause = getattr(error, "cause", None) or error
        if isinstance(cause, AgentError):
            raise ConfigError(str(cause)) from error
        again = f"Run the same command again to resume after step {folder.last_step}."
        say(console, (f"The run failed: {first_cause(cause)}", "red"))
        say(console, f"{again} Errors in {folder.log}:")
        say(console, errors_in(folder.log))
        raise


def first_cause(error: BaseException) -> str:
    """Return type and first line of the error that began a chain of errors."""
    while (before := error.__cause__ or (None if error.__suppress_context__ else error.__context__)) is not None:
        error = before
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}{f': {lines[0]}' if lines else ''}"


def errors_in(log: Path, count: int = 8) -> str:
    """Return the first error in a log, which often caused the others, and its last `count` lines that name one.

    A log without an error has its last lines instead.
    """
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    first = first_error_in([log])
    last = [line for line in lines if ERROR.search(line) and line not in first][-count:]
    if not last and not first:
        return "\n".join(lines[-count:])
    return "\n".join([*([first] if first else []), *last])
