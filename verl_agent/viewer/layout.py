"""Frame of every page: header, links of the run, errors, and refreshing while a run grows."""

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from time import monotonic
from typing import TypeVar
from urllib.parse import quote, unquote, urlencode

from nicegui import Client, ui
from nicegui.events import KeyEventArguments

from verl_agent.errors import ConfigError, describe_exception
from verl_agent.oversight.socket import SOCKET
from verl_agent.results.folder import REPORT
from verl_agent.viewer.episode_html import THEME, html
from verl_agent.viewer.overview import is_running
from verl_agent.viewer.state import OpenedSource, ViewerState, in_thread
from verl_agent.viewer.text import cut_text, short_name
from verl_agent.visible import make_visible

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


def link_to(path: str, parameters: Mapping[str, object] | None = None) -> str:
    """Return a URL of the viewer; empty parameters are left out.

    Args:
        path: path of a page, quoted; see `run_path`.
        parameters: values by name; of a list, each value becomes a parameter.
    """
    given = {name: value for name, value in (parameters or {}).items() if value not in (None, "", [])}
    query = urlencode(given, doseq=True, errors="replace")
    return path + (f"?{query}" if query else "")


def run_path(opened: OpenedSource, rest: str = "") -> str:
    """Return the path of a page of a source, quoted: names of runs and of files may have characters such as `#`."""
    return quote(f"/run/{opened.key}{rest}", errors="replace")


class Page:
    """Page that is being laid out: the header and the links of its source stand above the content."""

    def __init__(self, state: ViewerState) -> None:
        self.state = state
        ui.add_css(THEME)
        ui.colors(primary="#005f99")
        with ui.header(), ui.element("nav").classes("bar w-full"):
            ui.link("verl-agent", "/").classes("heading")
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
        self._content = ui.column().classes("w-full gap-4")
        self._timers: list[Callable[[], object]] = []

    def every(self, seconds: float, call: Callable[[], object]) -> None:
        """Call a function again and again after the page is complete: NiceGUI delivers a page at its first timer."""
        self._timers.append(lambda: ui.timer(seconds, call))

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
        if key in self._links:
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
        request = ui.context.client.request
        ui.link(name, url).classes("here" if request is not None and request.url.path == unquote(url) else "")

    @contextmanager
    def content(self) -> Iterator[None]:
        """Add elements to the content; an error takes their place."""
        try:
            with self._content:
                yield
        except ConfigError as error:
            self._show_instead(error)
        except Exception as error:  # a page's boundary: the viewer goes on, and the reader sees the reason
            logger.exception("a page of the viewer has failed")
            self._show_instead(error)
        for start in self._timers:
            start()
        _limit_unopened(ui.context.client)

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

    def _show_instead(self, error: Exception) -> None:
        self._content.clear()
        with self._content:
            show_error(error)


def _limit_unopened(client: Client) -> None:
    """Delete the oldest of the pages that no browser has connected to, if this one makes them too many."""
    _unopened.append(client)
    client.on_connect(lambda: _unopened.remove(client) if client in _unopened else None)
    if len(_unopened) > MAX_UNOPENED and (oldest := _unopened.popleft()).id in Client.instances:
        oldest.delete()


@contextmanager
def page_part(box: ui.element) -> Iterator[None]:
    """Fill a part of a page; an error takes the place of its content, and the other parts stand."""
    with box:
        try:
            yield
        except Exception as error:  # boundary of a part: a file that cannot be read hides no other run
            if not isinstance(error, ConfigError):
                logger.exception("a part of a page of the viewer has failed")
            box.clear()
            show_error(error)


@contextmanager
def new_page(state: ViewerState) -> Iterator[Page]:
    """Lay out a page. An error is shown in place of the content; one of a later event in a notification."""
    page = Page(state)
    ui.on_exception(lambda error: ui.notify(_message(error), type="negative"))  # NiceGUI logs it
    with page.content():
        yield page


def _message(error: Exception) -> str:
    if isinstance(error, ConfigError):
        return make_visible(str(error))
    return make_visible(
        f"This page has failed: {describe_exception(error)}. The output of `verl-agent view` has the details."
    )


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


def show_error(error: Exception) -> None:
    """Show the message of an error."""
    ui.label(_message(error)).classes("bad-text")


def icon_button(icon: str, name: str, on_click: Callable[[], object], size: str = "md") -> ui.button:
    """Add a button with an icon, whose name a screen reader says and a tooltip shows."""
    button = ui.button(icon=icon, on_click=on_click).props(f"dense flat size={size}").tooltip(name)
    button.props["aria-label"] = name
    return button


def add_heading(text: str) -> ui.html:
    """Add the heading of a section."""
    return ui.html(html(text), sanitize=False, tag="h2").classes("heading")


def show_html(content: str, classes: str = "w-full") -> ui.html:
    """Show HTML of this package, in which all text from outside is escaped."""
    return ui.html(content, sanitize=False).classes(classes)


def show_text(text: str, classes: str = "") -> None:
    """Show text of a model or an environment as it is: never as markup, long text cut with a button for the rest."""
    shown, left_out = cut_text(text)
    label = ui.label(shown).classes(f"mono {classes}")
    if left_out:

        def show_all() -> None:
            label.text = cut_text(text, len(text))[0]
            button.delete()

        button = ui.button(f"{left_out:,} more characters", on_click=show_all).props("dense flat size=sm")
