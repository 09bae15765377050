"""Table of episodes with filters, all of them in the URL."""

from functools import partial

from nicegui import ui
from starlette.requests import Request

from verl_agent.errors import ConfigError, did_you_mean
from verl_agent.trace.behaviors import BEHAVIORS
from verl_agent.viewer.filters import DIVERGENCE, SORT, Filter, SavedFilters
from verl_agent.viewer.layout import Page, add_keys, icon_button, link_to, new_page, run_path, show_error, url_of
from verl_agent.viewer.pages.grid import Row, add_grid, focus_first_row, replace_rows
from verl_agent.viewer.pages.paging import add_pager, page_number
from verl_agent.viewer.queries import count_episodes, find_episodes
from verl_agent.viewer.state import OpenedSource, ViewerState
from verl_agent.viewer.text import short_name

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


def add(state: ViewerState) -> None:
    """Register the page `/run/<key>/episodes`."""

    @url_of("/run/{key}/episodes")
    async def episodes(key: str, request: Request) -> None:
        with new_page(state) as page:
            opened = page.open(key, f"{key}: episodes")
            number = page_number(request)
            columns = _columns(request.query_params.get("columns", ""))
            given = {name: value for name, value in request.query_params.items() if name not in ("page", "columns")}
            chosen = Filter.parse(given)
            _filters(opened, chosen, columns)
            _saved(opened, chosen)
            await _table(page, opened, chosen, columns, number)


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


def _go(opened: OpenedSource, values: dict[str, str]) -> None:
    ui.navigate.to(link_to(run_path(opened, "/episodes"), values))


def _filters(opened: OpenedSource, chosen: Filter, columns: tuple[str, ...]) -> None:
    fields: dict[str, ui.input] = {}
    others = {name: value for name, value in chosen.values.items() if name not in (*FIELDS, "text")}

    def apply(extra: dict[str, str] | None = None) -> None:
        own = {"columns": "" if columns == SHOWN else ",".join(columns)}
        _go(opened, {name: entry.value for name, entry in fields.items()} | others | own | (extra or {}))

    def remove(name: str) -> None:
        del others[name]
        apply()

    def add_field(name: str) -> None:
        entry = ui.input(name, value=chosen.values.get(name, ""), placeholder=HINTS.get(name, ""))
        fields[name] = entry.props("dense outlined").on("keydown.enter", lambda: apply())

    with ui.element("div").classes("fields"):
        add_field("text")
        ui.select(
            ["", *SORT, *(f"-{name}" for name in SORT)],
            value=chosen.values.get("sort", ""),
            label="sort",
            on_change=lambda event: apply({"sort": event.value}),
        ).props("dense outlined")
        ui.select(
            list(SORT),
            value=list(columns),
            label="columns",
            multiple=True,
        ).props(f'dense outlined display-value="{len(columns)} columns"').on(
            "popupHide", lambda event: apply({"columns": ",".join(event.sender.value)})
        )
        ui.select(
            [behavior.name for behavior in BEHAVIORS],
            label="behavior",
            on_change=lambda event: apply({event.value: "1.."}),
        ).props("dense outlined")
        ui.button("Filter", on_click=lambda: apply()).props("dense unelevated")
        ui.button("Clear", on_click=lambda: _go(opened, {})).props("dense flat")
    shown = any(name in FIELDS for name in chosen.values)
    with ui.expansion("Filters", value=shown).props("dense").classes("w-full"), ui.element("div").classes("fields"):
        for name in FIELDS:
            add_field(name)
    rest = {name: value for name, value in others.items() if name != "sort"}
    if rest:
        with ui.row().classes("gap-2"):
            for name, value in rest.items():
                ui.chip(
                    f"{short_name(name)}={short_name(value)}", removable=True, on_value_change=partial(remove, name)
                ).props("dense")

    def search() -> None:
        fields["text"].run_method("focus")

    add_keys({"/": ("search for text", search)})


def _saved(opened: OpenedSource, chosen: Filter) -> None:
    saved = SavedFilters()
    try:
        filters = saved.read()
    except ConfigError as error:
        show_error(error)
        return

    def change(name: str, values: dict[str, str] | None) -> None:
        try:
            saved.change(name, values)
        except ConfigError as error:
            ui.notify(str(error), type="negative")
            return
        _go(opened, dict(chosen.values))

    with ui.row().classes("items-center gap-2"):
        ui.label("Saved filters:" if filters else "No saved filter.")
        for name, one in filters.items():
            ui.link(short_name(name), link_to(run_path(opened, "/episodes"), one.values))
            icon_button("close", f"delete the filter {short_name(name)}", partial(change, name, None), "xs")
        if chosen.values:
            entry = ui.input("save this filter as").props("dense").classes("w-40")
            entry.on("keydown.enter", lambda: change(entry.value, dict(chosen.values)))


async def _table(view: Page, opened: OpenedSource, chosen: Filter, columns: tuple[str, ...], page: int) -> None:
    path, own = run_path(opened, "/episodes"), {"columns": "" if columns == SHOWN else ",".join(columns)}
    given = {**chosen.values, **own}
    set_total = add_pager(page, PAGE_SIZE, "episode", lambda number: link_to(path, {**given, "page": number}))

    def open_episode(row: Row, column: str) -> None:
        ui.navigate.to(link_to(run_path(opened, f"/episode/{row['id']}"), chosen.values))

    narrow = ("step", "task", "success", "turns") if columns == SHOWN else ()
    order = chosen.values.get("sort", "")
    grid = add_grid(columns, [], open_episode, narrow=narrow, sortable=order)

    async def draw() -> None:
        filtered = tuple(chosen.values.items())
        set_total(await opened.fetch(("count", *filtered), lambda: count_episodes(opened.index, chosen)))
        first = (page - 1) * PAGE_SIZE
        rows = await opened.fetch(
            ("rows", page, *filtered), lambda: find_episodes(opened.index, chosen, PAGE_SIZE, first)
        )
        replace_rows(grid, ({name: row[name] for name in (*columns, "id")} for row in rows))

    await draw()
    view.refresh_with(opened, draw)
    focus_first_row(grid, columns[0])
