"""Progress of a training run: one row of at most 80 characters per step, redrawn in place in a terminal."""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner

from verl_agent.terminal import Console, say, styled
from verl_agent.trace.metrics_log import (
    ENTROPY,
    GAP_LOG_PROB,
    GAP_PROBABILITY,
    LoggedStep,
    MetricsTail,
    validation_scores,
)

ROWS_SHOWN = 15
"""Number of latest steps shown in a terminal."""

ROWS_PER_HEADER = 30
"""Number of plain lines after which the header is repeated."""

STEPS_FOR_ETA = 20
"""Number of latest steps whose mean time predicts the remaining time."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column of the progress table.

    Attributes:
        names: metric names; the first logged one is shown.
        width: number of characters, at least those of the title.
        margin: metric of half the width of the value's interval, which follows after `±` where it is logged.
    """

    title: str
    names: tuple[str, ...]
    text: Callable[[float], str]
    width: int = 7
    margin: str = ""

    def cell(self, logged: Mapping[str, float]) -> str:
        """Return the text of the first logged metric, with its margin; `-` without one."""
        values = [logged[name] for name in self.names if name in logged]
        if not values:
            return "-"
        if self.margin not in logged:
            return self.text(values[0])
        digits = 2 if 0 <= values[0] < 10 else 1
        margin = f"{logged[self.margin]:.{digits}f}".removeprefix("0")
        return f"{values[0]:.{digits}f}±{margin}"


GAPS = (
    Column("gap", GAP_PROBABILITY, "{:.4f}".format, 6),
    Column("kl", GAP_LOG_PROB, "{:.4f}".format, 6),
)
"""Difference between engine and trainer: of probabilities, or of log-probs in a run whose trainer computes none of its
own before the update. A run shows the one that it logs first."""
COLUMNS = (
    Column("horizon", ("episode/horizon",), "{:.0f}".format),
    Column("reward", ("episode/reward_mean", "critic/score/mean"), "{:.3f}".format, 8, "episode/reward_margin"),
    Column("success", ("episode/success_rate",), "{:.1%}".format),
    Column("turns", ("episode/turns_mean",), "{:.1f}".format, 5),
    Column("invalid", ("action/invalid_action",), "{:.1%}".format),
    Column("entropy", ENTROPY, "{:.3f}".format),
    *GAPS,
    Column("seconds", ("timing_s/step",), "{:.1f}".format),
)
"""Columns between the step number and the remaining time."""


class ProgressView:
    """View that follows the metrics log of a run.

    In a terminal a table is redrawn in place; elsewhere each step is one line. Use it as a context manager and call
    `update` about once a second.

    Args:
        metrics_path: path of the log of verl's `file` logger; it may not exist yet.
        total_steps: number of training steps of the whole run.
        on_validation: returns lines that are shown below those of a validation before the last step.
    """

    def __init__(
        self,
        metrics_path: Path | str,
        total_steps: int,
        console: Console,
        on_validation: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        self._on_validation = on_validation
        self._notes: Sequence[str] = ()
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
        # Rich would print the output of libraries in the terminal; `redirect_output` sends it to the log.
        self._columns = [column for column in COLUMNS if column is not GAPS[1]]
        self._live = Live(
            console=console,
            get_renderable=self._render,
            refresh_per_second=4,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def __enter__(self) -> Self:
        if self._redraws:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.update()
        self._ended = True
        self._live.stop()

    def phase(self, text: str) -> None:
        """Show the current phase, for example `starting Ray`; an empty text ends the phase."""
        if text == self._phase:
            return
        self._phase, self._since_s = text, time.monotonic()
        if self._redraws:
            self._live.refresh()
        elif text:
            self._print(f"{text} ...")

    def update(self) -> None:
        """Show the steps logged since the last call."""
        for logged in self._tail.read():
            self._show(logged)

    def _show(self, logged: LoggedStep) -> None:
        if "timing_s/step" in logged.values:
            self._seconds.append(logged.values["timing_s/step"] + logged.values.get("timing_s/testing", 0.0))
        is_training = any(name in logged.values for column in COLUMNS for name in column.names)
        if is_training:
            self.phase("")
            self._since_s = time.monotonic()
            logs = [any(name in logged.values for name in gap.names) for gap in GAPS]
            if not self._rows and logs == [False, True]:
                self._columns = [column for column in COLUMNS if column is not GAPS[0]]
            self._rows.append(self._row(logged))
        lines = [line for split in ("val", "test") if (line := _validation_line(logged, split))]
        self._validations += lines
        if lines:  # the end of the run has its own
            self._notes = self._on_validation() if logged.step < self.total_steps else ()
        if self._redraws:
            self._live.refresh()
            return
        if is_training:
            if self._lines % ROWS_PER_HEADER == 0:
                self._print(self._aligned(self._titles()))
            self._print(self._aligned(self._rows[-1]))
            self._lines += 1
        for line in (*lines, *(self._notes if lines else ())):
            self._print(line)

    def _titles(self) -> list[str]:
        return ["step", *(column.title for column in self._columns), "left"]

    def _aligned(self, cells: list[str]) -> str:
        widths = [9, *(column.width for column in self._columns), 8]
        return " ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True))

    def _row(self, logged: LoggedStep) -> list[str]:
        cells = [f"{logged.step}/{self.total_steps}"]
        for column in self._columns:
            cells.append(column.cell(logged.values))
        return [*cells, self._time_left(logged.step)]

    def _time_left(self, step: int) -> str:
        if not self._seconds:
            return "-"
        left_s = (self.total_steps - step) * sum(self._seconds) / len(self._seconds)
        days, seconds = divmod(round(max(0.0, left_s)), 86_400)
        return f"{days}d {seconds // 3600}h" if days else str(timedelta(seconds=seconds))

    def _render(self) -> Group:
        lines = [styled(self._aligned(row)) for row in (self._titles(), *self._rows)]
        for line in lines:
            line.no_wrap, line.overflow = True, "crop"
        lines[0].stylize("bold")
        shown: list[RenderableType] = [*(lines if self._rows else []), *map(styled, (*self._validations, *self._notes))]
        if self._ended:
            return Group(*shown)
        elapsed = timedelta(seconds=round(time.monotonic() - self._since_s))
        doing = self._phase or ("next step" if self._rows else "waiting for the first step")
        self._spinner.update(text=styled((f"{doing}  {elapsed}", "dim")))
        return Group(*shown, self._spinner)

    def _print(self, line: str) -> None:
        say(self.console, line)


def _validation_line(logged: LoggedStep, split: str) -> str:
    """Return the success of each source; the reward only of a source without one, since it has no interval here."""
    parts: dict[str, list[str]] = {}
    scores = validation_scores(logged.values, split)
    with_success = {score.source for score in scores if score.measure == "success"}
    for score in scores:
        if score.measure == "reward" and score.source in with_success:
            continue
        text = f"{score.value:.1%}" if score.measure == "success" else f"{score.value:.3f}"
        parts.setdefault(score.source, []).append(f"{score.measure} {text}")
    if not parts:
        return ""
    name = "validation" if split == "val" else "test"
    return f"{name} after step {logged.step}: " + "; ".join(f"{key} {', '.join(v)}" for key, v in parts.items())
