"""First page: a card for each opened run and evaluation, the latest first."""

from functools import partial

from nicegui import ui

from verl_agent.viewer.layout import link_to, new_page, run_path, url_of
from verl_agent.viewer.overview import Overview, read_overview, status_of
from verl_agent.viewer.state import ViewerState, in_thread
from verl_agent.viewer.svg import sparkline
from verl_agent.viewer.text import short_name

STATUS_LOOKS = {"running": "accent", "ended": "chip good"}
"""Classes of a status; others are `chip bad`."""


def add(state: ViewerState) -> None:
    """Register the page `/`."""

    @url_of("/")
    async def home() -> None:
        with new_page(state), ui.element("div").classes("sides"):
            cards = [(await one.fetch("overview", partial(read_overview, one)), one) for one in state.opened.values()]
            for overview, opened in sorted(cards, key=lambda card: card[0].facts.get("started", ""), reverse=True):
                with ui.card().classes("w-full gap-2 min-w-0"):
                    with ui.row().classes("items-baseline gap-3"):
                        ui.link(opened.key, link_to(run_path(opened))).classes("heading")
                        show_status(await in_thread(partial(status_of, opened)))
                    show_overview(overview)
                    ui.label(str(opened.source.path)).classes("small muted break-all")


def show_overview(overview: Overview) -> None:
    """Show facts and result of a run."""
    if overview.result:
        ui.label(overview.result).classes("font-medium")
    if len(overview.success) > 1:
        ui.html(sparkline(overview.success, 240, 36), sanitize=False)  # numbers alone
    with ui.row().classes("gap-x-4 gap-y-1"):
        for name, value in overview.facts.items():
            with ui.row(wrap=False).classes("gap-1"):
                ui.label(name).classes("muted")
                ui.label(short_name(value)).classes("break-all")


def show_status(status: str) -> None:
    """Show the status of a run; "" for none."""
    if status:
        ui.label(status).classes(STATUS_LOOKS.get(status, "chip bad"))
