"""Table of episodes with filters, all of them in the URL."""

from functools import partial

from nicegui import ui
from starlette.requests import Request

from verl_agent.errors import ConfigError, did_you_mean
from verl_agent.trace.behaviors import BEHAVIORS
from verl_agent.viewer.elements import add_fields, icon_button, show_error
from verl_agent.viewer.filters import DIVERGENCE, SORT, Filter, SavedFilters
from verl_agent.viewer.layout import Page, add_keys
from verl_agent.viewer.links import here, link_to, run_path
from verl_agent.viewer.pages.listing import add_listing
from verl_agent.viewer.queries import Row, count_episodes, find_episodes
from verl_agent.viewer.state import OpenedSource
from verl_agent.viewer.text import short_name

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
FIELDS = ("step", "purpose", "env", "category", "task", "success", "reward", "stop", "turns", DIVERGENCE, "label")
"""Filters with a field of their own, as `text` has; others come from links, saved filters and the URL."""
HINTS = {
    "step": "3..7",
    "purpose": "train",
    "success": "yes or no",
    "reward": "0.5..",
    "turns": "..4",
    DIVERGENCE: "1..2",
    "label": "good,-bad",
}
"""Example of a value, shown in an empty field."""


async def show(page: Page, opened: OpenedSource, request: Request) -> None:
    """Show the page `/run/<key>/episodes`; its parameters are those of `Filter`, `columns` and `page`."""
    columns = _columns(request.query_params.get("columns", ""))
    chosen = filter_of(request, "columns")
    _filters(opened, chosen, columns)
    _saved(opened, chosen)

    def find(limit: int, offset: int) -> tuple[list[Row], int]:
        return find_episodes(opened.index, chosen, limit, offset), count_episodes(opened.index, chosen)

    def link(row: Row) -> str:
        return link_to(run_path(opened, f"/episode/{row['id']}"), chosen.values)

    await add_listing(page, opened, "episode", columns, find, link, sortable=True)


def filter_of(request: Request, *others: str) -> Filter:
    """Return the filter in the parameters of a URL other than `page` and `others`."""
    return Filter.parse({name: value for name, value in request.query_params.items() if name not in ("page", *others)})


def _columns(value: str) -> tuple[str, ...]:
    """Return the columns of the table.

    Raises:
        ConfigError: an unknown column.
    """
    chosen = tuple(dict.fromkeys(part.strip() for part in value.split(",") if part.strip()))
    for name in chosen:
        if name not in SORT:
            raise ConfigError(f"columns={name!r} is not allowed. {did_you_mean(name, SORT)}")
    return chosen or SHOWN


def _filters(opened: OpenedSource, chosen: Filter, columns: tuple[str, ...]) -> None:
    def go(**changes: str) -> None:
        ui.navigate.to(here(**changes, page=""))

    with ui.element("div").classes("fields"):
        text = add_fields(["text"])["text"]
        orders = ["", *SORT, *(f"-{name}" for name in SORT)]
        behaviors = [behavior.name for behavior in BEHAVIORS]
        for label, options, value, change in (
            ("sort", orders, chosen.values.get("sort", ""), lambda event: go(sort=event.value)),
            ("behavior", behaviors, None, lambda event: go(**{event.value: "1.."})),
        ):
            ui.select(options, value=value, label=label, on_change=change).props("dense outlined")
        shown = ui.select(list(SORT), value=list(columns), label="columns", multiple=True)
        shown.props(f'dense outlined display-value="{len(columns)} columns"')
        shown.on("popupHide", lambda: go(columns="" if shown.value == list(SHOWN) else ",".join(shown.value)))
        ui.button("Clear", on_click=lambda: ui.navigate.to(run_path(opened, "/episodes"))).props("dense flat")
    opens = any(name in FIELDS for name in chosen.values)
    with ui.expansion("Filters", value=opens).props("dense").classes("w-full"), ui.element("div").classes("fields"):
        add_fields(FIELDS, HINTS, "Filter")
    with ui.row().classes("gap-2"):
        for name, value in chosen.values.items():
            if name not in (*FIELDS, "text", "sort"):
                chip = ui.chip(f"{short_name(name)}={short_name(value)}", removable=True).props("dense")
                chip.on_value_change(partial(lambda name: go(**{name: ""}), name))

    def search() -> None:
        text.run_method("focus")

    add_keys({"/": ("search for text", search)})


def _saved(opened: OpenedSource, chosen: Filter) -> None:
    saved = SavedFilters()
    try:
        filters = saved.read()
    except ConfigError as error:
        show_error(error)
        return

    def change(name: str, values: dict[str, str] | None) -> None:
        saved.change(name, values)
        ui.navigate.reload()

    with ui.row().classes("items-center gap-2"):
        ui.label("Saved filters:" if filters else "No saved filter.")
        for name, one in filters.items():
            ui.link(short_name(name), link_to(run_path(opened, "/episodes"), one.values))
            icon_button("close", f"delete the filter {short_name(name)}", partial(change, name, None), "xs")
        if chosen.values:
            entry = ui.input("save this filter as").props("dense").classes("w-40")
            entry.on("keydown.enter", lambda: change(entry.value, dict(chosen.values)))
