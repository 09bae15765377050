"""Table of episodes with filters, all of them in the URL."""

from nicegui import ui
from starlette.requests import Request

from verl_agent.errors import ConfigError
from verl_agent.viewer.filters import PARAMETERS, Filter
from verl_agent.viewer.layout import frame, link_to, refresh_with, run_path, show_error
from verl_agent.viewer.queries import count_episodes, find_episodes
from verl_agent.viewer.state import OpenedSource, ViewerState

PAGE_SIZE = 100
"""Rows of one page of the table."""
SHOWN = (
    "step",
    "purpose",
    "env",
    "category",
    "task",
    "sample",
    "reward",
    "success",
    "stop",
    "turns",
    "tokens",
    "seconds",
)
"""Columns of the table."""


def add(state: ViewerState) -> None:
    """Register the page `/run/<key>/episodes`."""

    @ui.page("/run/{key}/episodes")
    def episodes(key: str, request: Request) -> None:
        try:
            opened = state.get(key)
            chosen = Filter.parse({name: value for name, value in request.query_params.items() if name in PARAMETERS})
        except ConfigError as error:
            with frame(state):
                show_error(error)
            return
        with frame(state, opened, f"{key}: episodes"):
            _filters(opened, chosen)
            _table(opened, chosen)


def _filters(opened: OpenedSource, chosen: Filter) -> None:
    fields: dict[str, ui.input] = {}

    def apply() -> None:
        values = {name: entry.value for name, entry in fields.items()}
        ui.navigate.to(link_to(run_path(opened, "/episodes"), values))

    with ui.row().classes("items-end gap-2"):
        for name in ("step", "purpose", "category", "success", "stop", "turns", "text"):
            entry = ui.input(name, value=chosen.values.get(name, "")).props("dense outlined").on("keydown.enter", apply)
            fields[name] = entry.classes("w-32")
        ui.button("Filter", on_click=apply).props("dense")


def _table(opened: OpenedSource, chosen: Filter) -> None:
    count = ui.label().classes("text-sm")
    grid = ui.aggrid({"columnDefs": [{"field": name} for name in SHOWN], "rowData": []}).classes("w-full h-[70vh]")

    def draw() -> None:
        count.text = f"{count_episodes(opened.index, chosen)} episodes"
        grid.options["rowData"] = [
            {name: row[name] for name in (*SHOWN, "id")} for row in find_episodes(opened.index, chosen, PAGE_SIZE)
        ]
        grid.update()

    draw()
    refresh_with(opened, draw)
    grid.on("cellClicked", lambda event: ui.navigate.to(run_path(opened, f"/episode/{event.args['data']['id']}")))
