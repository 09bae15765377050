"""First page: a card for each opened run and evaluation, the latest first; new ones appear while it is open."""

from functools import partial
from time import monotonic

from nicegui import ui

from verl_agent.viewer.diagnosis import find_in_run, show_findings
from verl_agent.viewer.layout import REFRESH_S, link_to, new_page, page_part, run_path, url_of
from verl_agent.viewer.overview import Overview, present_status, read_overview
from verl_agent.viewer.state import OpenedSource, ViewerState, in_thread
from verl_agent.viewer.svg import sparkline
from verl_agent.viewer.text import short_name
from verl_agent.visible import make_visible

STATUS_LOOKS = {"running": "accent", "reading": "muted", "ended": "chip good"}
"""Classes of a status; others are `chip bad`."""
SEARCHED = 6
"""Runs from which on there is a field that searches them."""


def add(state: ViewerState) -> None:
    """Register the page `/`."""

    @url_of("/")
    async def home() -> None:
        with new_page(state) as page:
            search = ui.input("search runs", on_change=lambda: show_matches()).props("dense outlined clearable")
            box = ui.element("div").classes("sides")
            cards: dict[str, _Card] = {}

            def show_matches() -> None:
                words = str(search.value or "").lower().split()
                for card in cards.values():
                    card.element.set_visibility(all(word in card.text for word in words))

            async def show(opened: OpenedSource) -> _Card:
                with box:
                    card = cards[opened.key] = _Card(opened)
                await card.draw()
                return card

            async def follow() -> None:
                for opened in [one for one in state.opened.values() if one.key not in cards]:
                    (await show(opened)).element.move(target_index=0)
                for card in list(cards.values()):
                    await card.refresh()
                search.set_visibility(len(cards) >= SEARCHED)
                show_matches()

            known = [(await one.fetch("overview", partial(read_overview, one)), one) for one in state.opened.values()]
            for _, opened in sorted(known, key=lambda card: card[0].facts.get("started", ""), reverse=True):
                await show(opened)
            search.set_visibility(len(cards) >= SEARCHED)
            page.every(REFRESH_S, follow)


class _Card:
    """Card of a run: status, first finding, result, facts. What takes time follows after the page is shown."""

    def __init__(self, opened: OpenedSource) -> None:
        self._opened, self._seen, self._next_at = opened, -1, 0.0
        self.text = ""
        with ui.card().classes("w-full gap-2 min-w-0") as self.element:
            with ui.row().classes("items-baseline gap-3"):
                with ui.element("h2").classes("heading"):
                    ui.link(opened.key, link_to(run_path(opened)))
                self._status = ui.element()
            self._findings = ui.column().classes("w-full gap-1")
            self._content = ui.column().classes("w-full gap-2")
            ui.label(make_visible(str(opened.source.path))).classes("small muted break-all")

    async def draw(self) -> None:
        """Show status and overview."""
        opened = self._opened
        words = [opened.key, str(opened.source.path)]
        with page_part(self._content):
            read = await opened.fetch("overview", partial(read_overview, opened))
            words += read.facts.values()
            self._content.clear()
            show_overview(read)
        with page_part(self._status):
            status = await in_thread(partial(present_status, opened))
            words.append(status)
            self._status.clear()
            show_status(status)
        self.text = " ".join(words).lower()

    async def refresh(self) -> None:
        """Show what has changed, for at most a tenth of the time."""
        start = monotonic()
        if self._opened.changes == self._seen or start < self._next_at:
            return
        first, self._seen = self._seen < 0, self._opened.changes
        with page_part(self._findings):
            found = await in_thread(partial(find_in_run, self._opened))
            self._findings.clear()
            show_findings(self._opened, found[:1])
        if not first:
            await self.draw()
        self._next_at = monotonic() + 9 * (monotonic() - start)


def show_overview(overview: Overview) -> None:
    """Show facts and result of a run."""
    if overview.result:
        ui.label(make_visible(overview.result)).classes("font-medium")
    if len(overview.success) > 1:
        ui.html(sparkline(overview.success, 240, 36), sanitize=False)  # numbers alone
    with ui.row().classes("gap-x-4 gap-y-1"):
        for name, value in overview.facts.items():
            with ui.row(wrap=False).classes("gap-1"):
                ui.label(name).classes("muted")
                ui.label(short_name(value)).classes("break-all")
    if overview.problem:
        ui.label(make_visible(overview.problem)).classes("bad-text break-all")


def show_status(status: str) -> None:
    """Show the status of a run; "" for none."""
    if status:
        ui.label(status).classes(STATUS_LOOKS.get(status, "chip bad"))
