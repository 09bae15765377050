"""Progress of an evaluation: a bar in a terminal, and about twenty plain lines elsewhere."""

import time
from datetime import timedelta
from types import TracebackType
from typing import Self

from rich.console import Console

from verl_agent.runs.console import progress_bar
from verl_agent.types import Episode, StopReason

LINES = 20
"""Approximate number of plain lines."""


class EvaluationProgress:
    """Counter of ended episodes that shows itself. Use it as a context manager.

    Args:
        console: output console.
        total: number of episodes of the whole evaluation.
        done: number of episodes played by earlier starts.
        bar: show a bar in a terminal; False leaves the terminal to questions.
    """

    def __init__(self, console: Console, total: int, done: int = 0, bar: bool = True) -> None:
        self.console, self.total = console, total
        self._shows_bar = console.is_terminal and bar
        self.played = self.solved = self.errors = self.overlong = self.operated = self.action_errors = 0
        self._done_before, self._started = done, time.monotonic()
        self._bar = progress_bar(console, "episodes")
        self._task = self._bar.add_task("playing", total=total, completed=done)

    def __enter__(self) -> Self:
        """Start the bar if the console is a terminal."""
        if self._shows_bar:
            self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Stop the bar and leave its last state on the screen."""
        if self._shows_bar:
            self._bar.stop()

    def add(self, episode: Episode) -> None:
        """Count the last attempt of one episode."""
        self.played += 1
        self.operated += episode.operated
        self.solved += episode.success and not episode.operated
        self.overlong += episode.stop is StopReason.OVERLONG_PROMPT
        self.errors += episode.stop is StopReason.ENV_ERROR
        self.action_errors += episode.stop is StopReason.ACTION_ERROR
        self._bar.update(self._task, advance=1, description=self.state)
        if not self._shows_bar and (self.played % max(1, self.total // LINES) == 0 or not self._left):
            left = timedelta(seconds=round(self._left * (time.monotonic() - self._started) / self.played))
            done = self._done_before + self.played
            self.console.print(f"{done}/{self.total} episodes, {self.state}, {left} left", highlight=False)

    @property
    def state(self) -> str:
        """Text with the success rate of the valid episodes since this start, and the numbers of special ones."""
        valid = self.played - self.errors - self.overlong - self.operated
        rate = f"success {self.solved / valid:.1%}" if valid else "success -"
        others = {
            "environment errors": self.errors,
            "action errors": self.action_errors,
            "overlong prompts": self.overlong,
            "with a person's decisions": self.operated,
        }
        return ", ".join([rate, *(f"{count} {name}" for name, count in others.items() if count)])

    @property
    def _left(self) -> int:
        return self.total - self._done_before - self.played
