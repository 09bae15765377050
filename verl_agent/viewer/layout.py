"""Frame of every page: header, links of the run, errors, and refreshing while a run grows."""

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from time import monotonic
from typing import TypeVar
from urllib.parse import unquote

from nicegui import Client, ui
from nicegui.events import KeyEventArguments
from starlette.requests import Request

from verl_agent.errors import ConfigError
from verl_agent.oversight.socket import SOCKET
from verl_agent.results.folder import REPORT
from verl_agent.viewer.elements import error_message, show_error
from verl_agent.viewer.episode_html import THEME, html
from verl_agent.viewer.links import link_to, run_path
from verl_agent.viewer.overview import is_running
from verl_agent.viewer.state import OpenedSource, ViewerState, in_thread
from verl_agent.viewer.text import short_name

logger = logging.getLogger(__name__)
T = TypeVar("T")

TABS = (
    ("Run", ""),
    ("Episodes", "/episodes"),
    ("Groups", "/group"),
    ("Tasks", "/task"),
    ("Horizon", "/horizon"),
    ("Labels", "/labels"),
    ("Tokens", "/tokens"),
)
EVALUATION_TABS = (*TABS[:4], ("Scaling", "/scaling"), ("Failures", "/failures"), *TABS[5:])
"""Title and last part of the path of the pages of one source; the keys 1, 2, ... open them."""
MOST_LINKS = 8
"""Runs that the header links; home has all."""
REFRESH_S = 1.0
"""Seconds between two checks for new episodes."""
MAX_UNOPENED = 20
"""Pages without a browser that are kept. One holds up to 2 MB, and NiceGUI keeps it for a minute."""
_unopened = deque[Client]()
"""Pages that no browser has connected to yet, the oldest first: a program requested them, or they were just sent."""
url_of = partial(ui.page, response_timeout=60)
"""Decorator of the function of a page, whose queries may take some seconds."""


class Page:
    """Page that is being laid out: the header and the links of its source stand above the content."""

    def __init__(self, state: ViewerState) -> None:
        self.state = state
        ui.add_css(THEME)
        ui.colors(primary="#005f99")
        with ui.header(), ui.element("nav").classes("bar w-full"):
            ui.link("verl-agent", "/").classes("heading")
            with ui.element("div").classes("contents") as self._bar:
                few = list(state.opened.values())[:MOST_LINKS]
                self._links = {other.key: ui.link(other.key, link_to(run_path(other))) for other in few}
            if len(state.opened) > MOST_LINKS:
                ui.link(f"all {len(state.opened)} runs", "/")
            ui.element("div").classes("ml-auto")
            self._add_link("Leaderboard", "/leaderboard")
            self._add_link("Compare", "/compare")
        self._head = ui.column().classes("gap-2 w-full")
        with self._head:
            self._heading = ui.html(sanitize=False, tag="h1").classes("title")
        self.set_title("runs")
        self.box = ui.column().classes("w-full gap-4")
        """Element that holds the content."""
        self._timers: list[Callable[[], object]] | None = []

    def every(self, seconds: float, call: Callable[[], object]) -> None:
        """Call a function again and again after the page is complete: NiceGUI delivers a page at its first timer."""
        self._start(lambda: ui.timer(seconds, call))

    def once(self, call: Callable[[], object]) -> None:
        """Call a function after the page is complete."""
        self._start(lambda: ui.timer(0.1, call, once=True))

    def _start(self, start: Callable[[], object]) -> None:
        if self._timers is None:
            start()
        else:
            self._timers.append(start)

    def complete(self) -> None:
        """Start the timers, which begin at once from then on."""
        timers, self._timers = self._timers or [], None
        for start in timers:
            start()

    def set_title(self, title: str) -> None:
        """Set the heading of the page and the title of the browser's tab."""
        self._heading.content = html(short_name(title))
        ui.page_title(f"{short_name(title)} · verl-agent")

    def open(self, key: str, title: str = "") -> OpenedSource:
        """Return the source that the page shows, and add its links, its keys and the progress of its index.

        Raises:
            ConfigError: no source has this key.
        """
        opened = self.state.get(key)
        self.set_title(title or key)
        if key not in self._links:
            with self._bar:
                self._links[key] = ui.link(key, link_to(run_path(opened)))
        self._links[key].classes("here")
        shown = EVALUATION_TABS if (opened.source.folder / REPORT).is_file() else TABS
        with self._head:
            with ui.element("nav").classes("bar w-full"):
                for name, rest in shown:
                    self._add_link(name, link_to(run_path(opened, rest)))
                if is_running(opened.source.folder):
                    self._add_link("Running", link_to(run_path(opened, "/running")))
                if (opened.source.folder / SOCKET).exists():
                    self._add_link("Control", link_to(run_path(opened, "/control")))
            tabs = {
                str(number): (name, lambda rest=rest: ui.navigate.to(link_to(run_path(opened, rest))))
                for number, (name, rest) in enumerate(shown, start=1)
            }
            add_keys(tabs | {"?": ("list the keys", _show_keys)})
            self.every(REFRESH_S, _status(opened))
        return opened

    @staticmethod
    def _add_link(name: str, url: str) -> None:
        """Add a link of a bar, marked on the page that it leads to."""
        ui.link(name, url).classes("here" if ui.context.client.request.url.path == unquote(url) else "")

    async def show(self, opened: OpenedSource, find: Callable[[], T], show: Callable[[T], None]) -> None:
        """Show what a query finds, now and whenever the source has changed."""
        box = ui.column().classes("w-full gap-4")

        async def draw() -> None:
            found = await in_thread(find)
            box.clear()
            with box:
                show(found)

        await draw()
        self.refresh_with(opened, draw)

    def refresh_with(self, opened: OpenedSource, draw: Callable[[], Awaitable[None]]) -> None:
        """Call `draw` whenever the source has changed, for at most a tenth of the time."""
        seen, next_at = opened.changes, 0.0

        async def check() -> None:
            nonlocal seen, next_at
            start = monotonic()
            if opened.changes != seen and start >= next_at:
                seen = opened.changes
                await draw()
                next_at = monotonic() + 9 * (monotonic() - start)

        self.every(REFRESH_S, check)


def _limit_unopened(client: Client) -> None:
    """Delete the oldest of the pages that no browser has connected to, if this one makes them too many."""
    _unopened.append(client)
    client.on_connect(lambda: _unopened.remove(client) if client in _unopened else None)
    if len(_unopened) > MAX_UNOPENED and (oldest := _unopened.popleft()).id in Client.instances:
        oldest.delete()


@contextmanager
def page_part(box: ui.element) -> Iterator[None]:
    """Fill a page or a part of it; an error takes the place of its content, and other parts stand."""
    with box:
        try:
            yield
        except Exception as error:  # boundary: the viewer goes on, and the reader sees the reason
            if not isinstance(error, ConfigError):
                logger.exception("a part of a page of the viewer has failed")
            box.clear()
            show_error(error)


@contextmanager
def new_page(state: ViewerState) -> Iterator[Page]:
    """Lay out a page. An error is shown in place of the content; one of a later event in a notification."""
    page = Page(state)
    ui.on_exception(lambda error: ui.notify(error_message(error), type="negative"))  # NiceGUI logs it
    with page_part(page.box):
        yield page
    page.complete()
    _limit_unopened(ui.context.client)


ShowRunPage = Callable[[Page, OpenedSource, Request], Awaitable[None]]
"""Function that adds the content of a page of one source."""


def add_run_page(state: ViewerState, path: str, title: str, show: ShowRunPage) -> None:
    """Register a page of each source.

    Args:
        path: end of the path after the key of the source; parameters in braces are in `Request.path_params`.
        title: heading after the key of the source; empty for the key alone.
    """

    @url_of(f"/run/{{key}}{path}")
    async def page_of_a_run(key: str, request: Request) -> None:
        with new_page(state) as page:
            await show(page, page.open(key, f"{key}: {title}" if title else key), request)


def add_keys(keys: Mapping[str, tuple[str, Callable[[], None]]]) -> None:
    """Call functions on keys, except while a field of text has the focus. The key `?` lists the keys of the page.

    Args:
        keys: description and function by name of the key, as browsers call it, such as `j` or `ArrowLeft`.
    """
    described: dict[str, str] = vars(ui.context.client).setdefault("described_keys", {})
    described |= {name: description for name, (description, _) in keys.items()}

    def on_key(event: KeyEventArguments) -> None:
        modified = event.modifiers.ctrl or event.modifiers.alt or event.modifiers.meta
        if event.action.keydown and not modified and event.key.name in keys:
            keys[event.key.name][1]()

    ui.keyboard(on_key, ignore=["input", "select", "textarea"])


def _show_keys() -> None:
    described: dict[str, str] = vars(ui.context.client)["described_keys"]
    with ui.dialog(value=True), ui.card():
        for name, description in described.items():
            ui.label(f"{name}: {description}")


def _status(opened: OpenedSource) -> Callable[[], None]:
    """Show the progress of the index and its problems, invalid lines among them; return what shows them again."""
    line = ui.label().classes("bad-text")

    def update() -> None:
        done, total = opened.progress
        parts = [opened.problem, opened.labels_problem, opened.invalid_lines]
        parts.append(f"Reading records: {done / total:.0%} of {total / 1e6:.0f} MB" if done < total else "")
        line.text = "\n".join(filter(None, parts))
        line.set_visibility(bool(line.text))

    update()
    return update
