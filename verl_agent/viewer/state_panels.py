"""Panels below each turn of an episode: drawings of the environment's state."""

import asyncio
from collections.abc import Callable, Sequence

from nicegui import ui

from verl_agent.errors import ConfigError
from verl_agent.trace.record import EpisodeRecord
from verl_agent.viewer.drawings import Panels, as_panels, draw_states
from verl_agent.viewer.layout import show_error, show_text
from verl_agent.viewer.parts import LONG, EpisodePart

TIMEOUT_S = 30.0
"""Most seconds that an adapter may take to draw an episode."""


class StatePanels:
    """Places of the drawings of an episode, filled in when the adapter has computed them."""

    def __init__(self, part: EpisodePart, read: Callable[[], EpisodeRecord]) -> None:
        self._part, self._read = part, read
        self._places: dict[int, ui.row] = {}
        self._message = ui.column()

    def add(self, turn: int) -> None:
        """Add the place of a turn, from 1, or of the start, 0."""
        self._places[turn] = ui.row().classes("gap-8 items-start")

    def fill(self) -> None:
        """Draw the states. Call it when the page is complete: NiceGUI delivers a page at its first timer."""
        ui.timer(0.1, self._fill, once=True)

    async def _fill(self) -> None:
        try:
            if self._part.long:
                raise ConfigError(f"States are drawn for episodes whose record has at most {LONG / 1e6:g} MB.")
            record = self._part.record if self._part.whole else await asyncio.to_thread(self._read)
            states = await compute_panels(record)
        except ConfigError as error:
            with self._message:
                show_error(error)
            return
        for turn, (texts, pictures) in enumerate(states):
            if turn in self._places:
                with self._places[turn]:
                    _show_state(texts, pictures)


async def compute_panels(record: EpisodeRecord, timeout_s: float = TIMEOUT_S) -> Panels:
    """Return the drawings of an episode, computed in a thread, which goes on after a timeout.

    Raises:
        ConfigError: see `draw_states` and `as_panels`; or they take longer than `timeout_s`.
    """
    compute = asyncio.to_thread(lambda: as_panels(draw_states(record), record["env"]))
    try:
        return await asyncio.wait_for(compute, timeout_s)
    except TimeoutError as error:
        raise ConfigError(f"{record['env']!r} has not drawn this episode within {timeout_s:g} s.") from error


def _show_state(texts: Sequence[str], pictures: Sequence[tuple[str, str]]) -> None:
    for text in texts:
        show_text(text)
    for title, url in pictures:
        with ui.column().classes("gap-1"):
            show_text(title)
            _image(url)


def _image(url: str) -> ui.element:
    image = ui.element("img")
    image.props["src"] = url
    return image
