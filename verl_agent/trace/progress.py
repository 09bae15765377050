"""What a person sees while a run trains: one row a step, live in a terminal, plain lines in a log."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from verl_agent.trace.metrics_log import ENTROPY, GAP, LoggedStep, MetricsTail, validation_scores

ROWS_SHOWN = 15
"""Steps that stay visible in a terminal."""

ROWS_PER_HEADER = 30
"""Lines after which a log repeats its header."""

STEPS_FOR_ETA = 20
"""Latest steps whose mean time predicts the remaining time."""


@dataclass(frozen=True, slots=True)
class Column:
    """One number of a step.

    Attributes:
        title: heading.
        names: metric names; the first one that was logged is shown.
        text: how a value reads.
        width: characters in a log.
    """

    title: str
    names: tuple[str, ...]
    text: Callable[[float], str]
    width: int = 8


COLUMNS = (
    Column("horizon", ("episode/horizon",), "{:.0f}".format),
    Column("reward", ("episode/reward_mean", "critic/score/mean"), "{:.3f}".format),
    Column("success", ("episode/success_rate",), "{:.1%}".format),
    Column("turns", ("episode/turns_mean",), "{:.1f}".format),
    Column("invalid", ("action/invalid_action",), "{:.1%}".format),
    Column("entropy", ENTROPY, "{:.3f}".format),
    Column("gap", GAP, "{:.4f}".format),
    Column("seconds", ("timing_s/step",), "{:.1f}".format, 9),
)
"""What is shown of a step, between its number and the remaining time."""


class ProgressView:
    """Follows the metrics log of a run and shows it.

    In a terminal a table is redrawn in place; elsewhere each step is one line. Use it as a context
    manager, and call `update` every second or so.

    Args:
        metrics_path: log of verl's `file` logger; it may not exist yet.
        total_steps: training steps of the whole run.
        console: where to show it.
    """

    def __init__(self, metrics_path: Path | str, total_steps: int, console: Console) -> None:
        self.total_steps = total_steps
        self.console = console
        self._redraws = console.is_terminal and not console.is_dumb_terminal
        self._tail = MetricsTail(metrics_path)
        self._rows: deque[list[str]] = deque(maxlen=ROWS_SHOWN)
        self._validations: deque[str] = deque(maxlen=3)
        self._seconds: deque[float] = deque(maxlen=STEPS_FOR_ETA)
        self._lines = 0
        self._phase = ""
        self._ended = False
        self._since_s = time.monotonic()
        self._spinner = Spinner("dots")
        # Rich would send what libraries print to the terminal; it belongs into the log (see `terminal.redirect_output`).
        self._live = Live(
            console=console,
            get_renderable=self._render,
            refresh_per_second=4,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def __enter__(self) -> Self:
        """Start to draw, if there is a terminal."""
        if self._redraws:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Show what is still unread and leave the last state on the screen."""
        self.update()
        self._ended = True
        self._live.stop()

    def phase(self, text: str) -> None:
        """Say what the run is doing now, such as `starting Ray`; an empty text ends it."""
        if text == self._phase:
            return
        self._phase, self._since_s = text, time.monotonic()
        if self._redraws:
            self._live.refresh()
        elif text:
            self._print(f"{text} ...")

    def update(self) -> None:
        """Show what was logged since the last call."""
        for logged in self._tail.read():
            self._show(logged)

    def _show(self, logged: LoggedStep) -> None:
        if "timing_s/step" in logged.values:
            self._seconds.append(logged.values["timing_s/step"] + logged.values.get("timing_s/testing", 0.0))
        is_training = any(name in logged.values for column in COLUMNS for name in column.names)
        if is_training:
            self.phase("")
            self._since_s = time.monotonic()
            self._rows.append(self._row(logged))
        line = _validation_line(logged)
        if line:
            self._validations.append(line)
        if self._redraws:
            self._live.refresh()
            return
        if is_training:
            if self._lines % ROWS_PER_HEADER == 0:
                self._print(_aligned(self._titles()))
            self._print(_aligned(self._rows[-1]))
            self._lines += 1
        if line:
            self._print(line)

    def _titles(self) -> list[str]:
        return ["step", *(column.title for column in COLUMNS), "left"]

    def _row(self, logged: LoggedStep) -> list[str]:
        cells = [f"{logged.step}/{self.total_steps}"]
        for column in COLUMNS:
            found = [logged.values[name] for name in column.names if name in logged.values]
            cells.append(column.text(found[0]) if found else "-")
        return [*cells, self._time_left(logged.step)]

    def _time_left(self, step: int) -> str:
        if not self._seconds:
            return "-"
        left_s = (self.total_steps - step) * sum(self._seconds) / len(self._seconds)
        return str(timedelta(seconds=round(max(0.0, left_s))))

    def _render(self) -> Group:
        table = Table(box=None, padding=(0, 1), header_style="bold")
        for title in self._titles():
            table.add_column(title, justify="right", no_wrap=True)
        for row in self._rows:
            table.add_row(*row)
        shown: list[RenderableType] = [*([table] if self._rows else []), *map(Text, self._validations)]
        if self._ended:
            return Group(*shown)
        elapsed = timedelta(seconds=round(time.monotonic() - self._since_s))
        doing = self._phase or ("next step" if self._rows else "waiting for the first step")
        self._spinner.update(text=Text(f"{doing}  {elapsed}", style="dim"))
        return Group(*shown, self._spinner)

    def _print(self, line: str) -> None:
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)


def _aligned(cells: list[str]) -> str:
    widths = [11, *(column.width for column in COLUMNS), 9]
    return " ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True))


def _validation_line(logged: LoggedStep) -> str:
    parts: dict[str, list[str]] = {}
    for score in validation_scores(logged.values):
        text = f"{score.value:.1%}" if score.measure == "success" else f"{score.value:.3f}"
        parts.setdefault(score.source, []).append(f"{score.measure} {text}")
    if not parts:
        return ""
    return f"validation after step {logged.step}: " + "; ".join(f"{key} {', '.join(v)}" for key, v in parts.items())
