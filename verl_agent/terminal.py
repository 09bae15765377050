"""Output to a terminal and questions at one: the text of others is shown and never acts.

Everything that the commands write goes through this module, since messages, tables and progress lines contain texts of
agents, of environments and of files. `tests/unit/project/test_terminal_output.py` finds other ways.
"""

import logging
import sys
import termios
import threading
import traceback
import warnings
from collections.abc import Iterable
from contextlib import suppress
from types import TracebackType
from typing import Any, TextIO

import rich.console
from rich.cells import chop_cells
from rich.console import ConsoleOptions, RenderableType
from rich.measure import Measurement
from rich.segment import Segment, Segments
from rich.table import Table
from rich.text import Text

from verl_agent.visible import FRAME, make_visible


class Console(rich.console.Console):
    """Console without markup, emoji names and highlighting, whose texts are visible (`make_visible`)."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **settings)

    def render_str(self, text: str, **settings: Any) -> Text:
        """Return the visible text; rich's own `Text` would drop some control characters without a trace."""
        return super().render_str(make_visible(text), **settings)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render an object; only rich's own segments for the cursor have control characters."""
        for segment in super().render(renderable, options):
            visible = segment.text if segment.control else make_visible(segment.text)
            yield segment if visible == segment.text else Segment(visible, segment.style)


def styled(*parts: str | tuple[str, str]) -> Text:
    """Return a text of visible parts, each a string or a string and its style."""
    pairs = ((part, "") if isinstance(part, str) else part for part in parts)
    return Text.assemble(*((make_visible(text), style) for text, style in pairs))


def say(console: rich.console.Console, *parts: str | tuple[str, str], end: str = "\n") -> None:
    """Print parts, each a string or a string and its style, as they are and without wrapping.

    Lines of a framed text (`visible.frame`) are folded to the width of the console, and each part has the frame.
    """
    text = styled(*parts)
    if any(line.startswith(FRAME) for line in text.plain.split("\n")):
        text = Text("\n".join(_fold(line, console.width) for line in text.plain.split("\n")))
    console.print(text, soft_wrap=True, end=end)


def show_table(console: rich.console.Console, *shown: RenderableType) -> None:
    """Print tables and other objects of rich; a table is wider than the console if its values need it."""
    for one in shown:
        width = max(console.width, _least_width(console, one)) if isinstance(one, Table) else console.width
        console.print(Segments(console.render(one, console.options.update_width(width))), crop=False)


FOLDED = 12
"""Least width of a column that folds its texts in a terminal; without a terminal it is as wide as they are."""
WIDEST = 10_000


def _least_width(console: rich.console.Console, table: Table) -> int:
    """Return the columns that a table needs so that no value which must not wrap is cut."""
    options = console.options.update_width(WIDEST)
    for column in table.columns:
        folds = column.overflow == "fold"
        if column.no_wrap or (folds and not console.is_terminal):
            parts = (Measurement.get(console, options, part).maximum for part in (column.header, *column.cells))
            column.min_width = max(parts)
        elif folds:
            column.max_width = FOLDED
    needed = Measurement.get(console, options, table).minimum
    for column in table.columns:
        if column.overflow == "fold":
            column.max_width = None
    return needed


def _fold(line: str, width: int) -> str:
    if not line.startswith(FRAME):
        return line
    room = max(8, width - len(FRAME))
    return "\n".join(FRAME + part for part in chop_cells(line[len(FRAME) :], room) or [""])


def say_error(message: str) -> None:
    """Print the message of an error, with which a command ends."""
    say(Console(stderr=True), ("error:", "red"), f" {message}")


def write_output(text: str) -> None:
    """Write the result of a command, such as a script: exact bytes into a file, visible text in a terminal."""
    sys.stdout.write(make_visible(text) if sys.stdout.isatty() else text)


def discard_typed(descriptor: int = 0) -> None:
    """Discard what has been typed or pasted before a question, which it cannot answer."""
    with suppress(termios.error):  # no terminal, or a closed one
        termios.tcflush(descriptor, termios.TCIFLUSH)


def ask_line(prompt: str, descriptor: int = 0) -> str | None:
    """Return a line that a person types after this call; None at the end of the input."""
    discard_typed(descriptor)
    try:
        return input(prompt)
    except EOFError:
        return None


class VisibleRecord(logging.LogRecord):
    """Entry of a log whose message and traceback are visible text."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        if self.stack_info:
            self.stack_info = make_visible(self.stack_info)
        if self.exc_info and self.exc_info[0] is not None:
            self.exc_text = make_visible("".join(traceback.format_exception(*self.exc_info)).rstrip("\n"))

    def getMessage(self) -> str:
        """Return the visible message."""
        return make_visible(super().getMessage())


def guard_output() -> None:
    """Make logs, warnings and tracebacks of this process visible text; each program calls it at its start."""
    logging.setLogRecordFactory(VisibleRecord)
    sys.excepthook = _print_traceback
    if threading.excepthook is threading.__excepthook__:  # a program around this one may collect them
        threading.excepthook = _print_end_of_thread
    if sys.unraisablehook is sys.__unraisablehook__:
        sys.unraisablehook = _print_unraisable
    warnings.showwarning = _print_warning


def _print_traceback(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    sys.stderr.write(make_visible("".join(traceback.format_exception(kind, error, trace))))


def _print_end_of_thread(ended: threading.ExceptHookArgs) -> None:
    if ended.exc_type is SystemExit:
        return
    name = ended.thread.name if ended.thread is not None else "unknown"
    sys.stderr.write(make_visible(f"Exception in thread {name}:\n"))
    _print_traceback(ended.exc_type, ended.exc_value or ended.exc_type(), ended.exc_traceback)


def _print_unraisable(ignored: "sys.UnraisableHookArgs") -> None:
    """Print an error that Python ignores, such as one of `__del__`."""
    sys.stderr.write(make_visible(f"{ignored.err_msg or 'Exception ignored in'}: {object.__repr__(ignored.object)}\n"))
    _print_traceback(ignored.exc_type, ignored.exc_value or ignored.exc_type(), ignored.exc_traceback)


def _print_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    (file or sys.stderr).write(make_visible(warnings.formatwarning(message, category, filename, lineno, line)))
