"""Frame of every page: header, links of the run, messages, and refreshing while a run grows."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import quote, urlencode

from nicegui import ui

from verl_agent.errors import ConfigError
from verl_agent.viewer.state import OpenedSource, ViewerState
from verl_agent.viewer.text import shorten

TABS = (("Run", ""), ("Episodes", "/episodes"), ("Tokens", "/tokens"))
"""Title and last part of the path of the pages of one source."""
REFRESH_S = 1.0
"""Seconds between two checks for new episodes."""


def link_to(path: str, parameters: Mapping[str, object] | None = None) -> str:
    """Return a URL of the viewer; empty parameters are left out."""
    query = urlencode({name: value for name, value in (parameters or {}).items() if value not in (None, "")})
    return quote(path) + (f"?{query}" if query else "")


def run_path(opened: OpenedSource, rest: str = "") -> str:
    """Return the path of a page of a source."""
    return f"/run/{opened.key}{rest}"


@contextmanager
def frame(state: ViewerState, opened: OpenedSource | None = None, title: str = "") -> Iterator[None]:
    """Lay out a page: the header, the tabs of the source, and what the caller adds."""
    ui.page_title(f"{title} · verl-agent" if title else "verl-agent")
    ui.add_css("body {background: #fafafa} .mono {font-family: ui-monospace, monospace; white-space: pre-wrap}")
    with ui.header().classes("items-center gap-6 py-2"):
        ui.link("verl-agent", "/").classes("text-white text-lg no-underline font-bold")
        for other in state.opened.values():
            chosen = "underline" if other is opened else "no-underline"
            ui.link(other.key, link_to(run_path(other))).classes(f"text-white {chosen}")
        ui.link("compare", "/compare").classes("text-white no-underline ml-auto")
    if opened is not None:
        with ui.row().classes("gap-4"):
            for name, rest in TABS:
                ui.link(name, link_to(run_path(opened, rest)))
        _status(opened)
    with ui.column().classes("w-full gap-4"):
        yield


def _status(opened: OpenedSource) -> None:
    """Show the progress of the index and its problems."""
    line = ui.label().classes("text-sm text-gray-600")

    def update() -> None:
        done, total = opened.progress
        reading = f"Reading records: {done / total:.0%} of {total / 1e6:.0f} MB" if done < total else ""
        line.text = opened.problem or reading
        line.set_visibility(bool(line.text))

    update()
    ui.timer(REFRESH_S, update)


def refresh_with(opened: OpenedSource, draw: Callable[[], None]) -> None:
    """Call `draw` whenever the source has new episodes."""
    seen = opened.changes

    def check() -> None:
        nonlocal seen
        if opened.changes != seen:
            seen = opened.changes
            draw()

    ui.timer(REFRESH_S, check)


def show_error(error: ConfigError) -> None:
    """Show the message of invalid input in place of a page's content."""
    ui.label(str(error)).classes("text-red-700")


def show_text(text: str, classes: str = "") -> None:
    """Show text of a model or an environment as it is: never as markup, long text cut with a button for the rest."""
    shown, left_out = shorten(text)
    label = ui.label(shown).classes(f"mono text-sm {classes}").style("unicode-bidi: plaintext; overflow-wrap: anywhere")
    if left_out:

        def show_all() -> None:
            label.text = shorten(text, len(text))[0]
            button.delete()

        button = ui.button(f"{left_out:,} more characters", on_click=show_all).props("dense flat size=sm")
