"""First page: a card for each opened run and evaluation."""

from functools import partial

from nicegui import ui

from verl_agent.viewer.layout import frame, link_to, run_path, url_of
from verl_agent.viewer.overview import Overview, read_overview
from verl_agent.viewer.state import ViewerState
from verl_agent.viewer.svg import sparkline
from verl_agent.viewer.text import short_name

STATUS_COLORS = {"running": "bg-blue-100 text-blue-900", "ended": "bg-green-100 text-green-900"}
"""Look of a status; others are orange."""


def add(state: ViewerState) -> None:
    """Register the page `/`."""

    @url_of("/")
    async def home() -> None:
        with frame(state), ui.element("div").classes("grid grid-cols-1 lg:grid-cols-2 gap-4 w-full"):
            for opened in state.opened.values():
                overview = await opened.fetch("overview", partial(read_overview, opened))
                with ui.card().classes("w-full gap-2 min-w-0"):
                    ui.link(opened.key, link_to(run_path(opened))).classes("text-lg break-all")
                    show_overview(overview)
                    ui.label(str(opened.source.path)).classes("text-xs text-gray-600 break-all")


def show_overview(overview: Overview) -> None:
    """Show status, facts and result of a run."""
    with ui.row().classes("gap-x-4 gap-y-1 items-baseline text-sm"):
        if overview.status:
            color = STATUS_COLORS.get(overview.status, "bg-orange-100 text-orange-900")
            ui.label(overview.status).classes(f"px-2 rounded {color}")
        for name, value in overview.facts.items():
            ui.label(f"{name} {short_name(value)}").classes("text-gray-800 break-all")
    if overview.result:
        ui.label(overview.result).classes("font-medium")
    if len(overview.success) > 1:
        ui.html(sparkline(overview.success), sanitize=False)  # numbers alone
