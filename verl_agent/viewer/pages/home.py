"""First page: a card for each opened run and evaluation, the latest first; new ones appear while it is open."""

from functools import partial

from nicegui import ui

from verl_agent.viewer.diagnosis import find_in_run, show_findings
from verl_agent.viewer.layout import REFRESH_S, Page, new_page, page_part, url_of
from verl_agent.viewer.links import link_to, run_path, show_in_url
from verl_agent.viewer.overview import Overview, read_overview, status_of
from verl_agent.viewer.state import OpenedSource, ViewerState, in_thread
from verl_agent.viewer.text import short_name, sparkline
from verl_agent.visible import make_visible

STATUS_LOOKS = {"running": "accent", "reading": "muted", "ended": "chip good"}
"""Classes of a status; others are `chip bad`."""
SEARCHED = 6
"""Runs from which on a field searches them."""


def add(state: ViewerState) -> None:
    """Register the page `/`; the parameter `search` has words of the shown runs."""

    @url_of("/")
    async def home(search: str = "") -> None:
        with new_page(state) as page:
            field = ui.input("search runs", value=search).props("dense outlined clearable")
            field.on_value_change(lambda: show_in_url(search=field.value))
            box = ui.element("div").classes("sides")
            known = [(await one.fetch("overview", partial(read_overview, one)), one) for one in state.opened.values()]
            shown = set[str]()

            async def add_card(opened: OpenedSource) -> ui.card:
                shown.add(opened.key)
                field.set_visibility(bool(search) or len(shown) >= SEARCHED)
                return await _add_card(page, box, opened, field)

            for _, opened in sorted(known, key=lambda card: card[0].facts.get("started", ""), reverse=True):
                await add_card(opened)

            async def add_new() -> None:
                for opened in [one for one in state.opened.values() if one.key not in shown]:
                    (await add_card(opened)).move(target_index=0)

            page.every(REFRESH_S, add_new)


async def _add_card(page: Page, box: ui.element, opened: OpenedSource, search: ui.input) -> ui.card:
    """Add the card of a run: status, first finding, result, facts. What takes time follows after the page is shown.

    Only a card that has all words of `search` is visible.
    """
    text = ""
    with box, ui.card().classes("w-full gap-2 min-w-0") as card:
        with ui.row().classes("items-baseline gap-3"):
            with ui.element("h2").classes("heading"):
                ui.link(opened.key, link_to(run_path(opened)))
            status = ui.element()
        findings = ui.column().classes("w-full gap-1")
        content = ui.column().classes("w-full gap-2")
        ui.label(make_visible(str(opened.source.path))).classes("small muted break-all")

    def match() -> None:
        card.set_visibility(all(word in text for word in (search.value or "").lower().split()))

    async def draw() -> None:
        nonlocal text
        words = [opened.key, str(opened.source.path)]
        with page_part(content):
            read = await opened.fetch("overview", partial(read_overview, opened))
            words += read.facts.values()
            content.clear()
            show_overview(read)
        with page_part(status):
            found = await in_thread(partial(status_of, opened))
            words.append(found)
            status.clear()
            show_status(found)
        text = " ".join(words).lower()
        match()

    async def draw_findings() -> None:
        with page_part(findings):
            found = await in_thread(partial(find_in_run, opened))
            findings.clear()
            show_findings(opened, found[:1])

    async def draw_again() -> None:
        await draw()
        await draw_findings()

    await draw()
    search.on_value_change(match)
    with card:
        page.once(draw_findings)
        page.refresh_with(opened, draw_again)
    return card


def show_overview(overview: Overview) -> None:
    """Show facts and result of a run."""
    if overview.result:
        ui.label(make_visible(overview.result)).classes("font-medium")
    if len(overview.success) > 1:
        ui.label(sparkline(overview.success)).tooltip("success by step")
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
