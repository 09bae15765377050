"""What a person sees while an evaluation plays: a bar in a terminal, a line now and then in a log."""

import time
from datetime import timedelta
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from verl_agent.types import Episode

LINES = 20
"""Lines that a log gets, about."""


class EvaluationProgress:
    """Counts episodes as they end. Use it as a context manager.

    Args:
        console: where to show it.
        total: episodes of the whole evaluation.
        done: how many of them were played earlier.
    """

    def __init__(self, console: Console, total: int, done: int = 0) -> None:
        self.console, self.total = console, total
        self.played = self.solved = self.faults = 0
        self._done_before, self._started = done, time.monotonic()
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("episodes"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            redirect_stdout=False,  # what libraries print belongs into the log
            redirect_stderr=False,
        )
        self._task = self._bar.add_task("playing", total=total, completed=done)

    def __enter__(self) -> Self:
        """Start to draw, if there is a terminal."""
        if self.console.is_terminal:
            self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Leave the last state on the screen."""
        if self.console.is_terminal:
            self._bar.stop()

    def add(self, episode: Episode) -> None:
        """Count one episode, the last try of it."""
        self.played += 1
        self.solved += episode.success
        self.faults += not episode.valid
        self._bar.update(self._task, advance=1, description=self.state)
        if not self.console.is_terminal and (self.played % max(1, self.total // LINES) == 0 or not self._left):
            left = timedelta(seconds=round(self._left * (time.monotonic() - self._started) / self.played))
            done = self._done_before + self.played
            self.console.print(f"{done}/{self.total} episodes, {self.state}, {left} left", highlight=False)

    @property
    def state(self) -> str:
        """Success of this run's sound episodes so far."""
        valid = self.played - self.faults
        rate = f"success {self.solved / valid:.1%}" if valid else "success -"
        return f"{rate}, {self.faults} faults" if self.faults else rate

    @property
    def _left(self) -> int:
        return self.total - self._done_before - self.played
