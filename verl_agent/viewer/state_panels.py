"""Panels below each turn of an episode: drawings of the environment's state."""

import asyncio
from collections.abc import Callable

from nicegui import ui

from verl_agent.errors import ConfigError
from verl_agent.trace.record import EpisodeRecord
from verl_agent.viewer.drawings import as_html, draw_states
from verl_agent.viewer.elements import show_error, show_html
from verl_agent.viewer.parts import LONG, EpisodePart

TIMEOUT_S = 30.0
"""Most seconds that an adapter may take to draw an episode."""


class StatePanels:
    """Places of the drawings of an episode, filled in when the adapter has computed them."""

    def __init__(self, part: EpisodePart, read: Callable[[], EpisodeRecord]) -> None:
        self._part, self._read = part, read
        self._places: dict[int, ui.html] = {}
        self._message = ui.column()

    def add(self, turn: int) -> None:
        """Add the place of a turn, from 1, or of the start, 0."""
        self._places[turn] = show_html("", "flex flex-wrap gap-8 items-start")

    def fill(self) -> None:
        """Draw the states. Call it when the page is complete: NiceGUI delivers a page at its first timer."""
        ui.timer(0.1, self._fill, once=True)

    async def _fill(self) -> None:
        try:
            if self._part.long:
                raise ConfigError(f"States are drawn for episodes whose record has at most {LONG / 1e6:g} MB.")
            record = self._part.record if self._part.whole else await asyncio.to_thread(self._read)
            states = await draw_in_thread(record)
        except ConfigError as error:
            with self._message:
                show_error(error)
            return
        for turn, state in enumerate(states):
            if state and turn in self._places:
                self._places[turn].content = state


async def draw_in_thread(record: EpisodeRecord, timeout_s: float = TIMEOUT_S) -> list[str]:
    """Return the drawings of an episode as HTML, computed in a thread, which goes on after a timeout.

    Raises:
        ConfigError: see `draw_states` and `as_html`; or they take longer than `timeout_s`.
    """
    drawing = asyncio.to_thread(lambda: as_html(draw_states(record), record["env"]))
    try:
        return await asyncio.wait_for(drawing, timeout_s)
    except TimeoutError as error:
        raise ConfigError(f"{record['env']!r} has not drawn this episode within {timeout_s:g} s.") from error
