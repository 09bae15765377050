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

from omegaconf import DictConfig
from rich.console import Console
from rich.markup import escape

from verl_agent.errors import AgentError, ConfigError
from verl_agent.runs.folder import RunFolder

logger = logging.getLogger(__name__)


FULL = (errno.ENOSPC, errno.EDQUOT)
"""Error codes of a write to a full disk, or beyond a quota."""


def exit_with(run: Callable[[DictConfig], None], config: DictConfig) -> None:
    """Run an entry point; exit with status 2 after a `ConfigError` or on a full disk, and 130 after Ctrl-C."""
    try:
        with explaining_full_disk():
            run(config)
    except ConfigError as error:
        Console(stderr=True).print(f"[red]error:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
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
    """Print how to resume after Ctrl-C, or the errors in the log after a failure.

    Raises:
        ConfigError: a Ray worker raised an error of this package, or the disk is full.
    """
    try:
        with explaining_full_disk(folder.root):
            yield
    except KeyboardInterrupt:
        console.print(f"\nStopped. Run the same command again to resume after step {folder.last_step}.")
        raise
    except Exception as error:  # shown and raised again
        cause = getattr(error, "cause", None) or error
        if isinstance(cause, AgentError):
            raise ConfigError(str(cause)) from error
        console.print(f"[red]The run failed: {type(cause).__name__}[/]. Errors in {folder.log}:")
        console.print(last_errors(folder.log), markup=False, highlight=False)
        raise


def last_errors(log: Path, count: int = 8) -> str:
    """Return the last `count` lines of a log that name an error; its last lines if none does."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    errors = [line for line in lines if ERROR.search(line)]
    return "\n".join((errors or lines)[-count:])
