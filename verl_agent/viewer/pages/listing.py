"""Long tables in pages: the number of the page in the URL, links to the pages before and after, rows that follow."""

from collections.abc import Callable, Sequence

from nicegui import ui
from starlette.requests import Request

from verl_agent.errors import ConfigError, counted
from verl_agent.viewer.elements import icon_button
from verl_agent.viewer.layout import Page, add_keys
from verl_agent.viewer.links import here
from verl_agent.viewer.pages.table import Table
from verl_agent.viewer.parsing import PART
from verl_agent.viewer.state import OpenedSource
from verl_agent.viewer.table_html import TableRow

LARGEST = 10**15 - 1
"""Largest number that a URL may have: SQLite holds it, also times the rows of a page."""
PAGE_SIZE = 100
"""Rows of one page of a table."""


def whole_number(name: str, value: str, least: int = 0) -> int:
    """Return the number in a part of a URL.

    Args:
        name: name of the part, for the message.
        value: text of the part.
        least: smallest number that is allowed.

    Raises:
        ConfigError: the text is not a whole number from `least` to `LARGEST`.
    """
    if value.isascii() and value.isdecimal() and len(value) <= len(str(LARGEST)) and int(value) >= least:
        return int(value)
    shown = value if len(value) <= 40 else f"{value[:40]}..."
    raise ConfigError(f"{name}={shown!r} is not allowed. Allowed: whole numbers from {least} to {LARGEST}.")


def page_number(request: Request) -> int:
    """Return the parameter `page`, which counts from 1.

    Raises:
        ConfigError: it is not a positive number.
    """
    return whole_number("page", request.query_params.get("page", "1"), 1)


async def add_listing(
    page: Page,
    opened: OpenedSource,
    noun: str,
    columns: Sequence[str],
    find: Callable[[int, int], tuple[Sequence[TableRow], int]],
    link: Callable[[TableRow], str],
    sortable: bool = False,
) -> None:
    """Add a table whose rows are found page by page, their number and the links to other pages; it follows the source.

    Args:
        noun: name of a row, such as `episode`.
        find: function that returns at most a limit of rows after an offset, and the number of all rows.
        link: function that returns the URL that a row opens.
        sortable: True if `find` reads the parameter `sort` of the URL.
    """
    request = ui.context.client.request
    number = page_number(request)
    total = 0

    def go(by: int) -> None:
        if 0 < number + by <= max(1, -(-total // PAGE_SIZE)):
            ui.navigate.to(here(page=number + by))

    with ui.row().classes("items-center gap-2"):
        label = ui.label()
        previous = icon_button("chevron_left", "previous page", lambda: go(-1))
        following = icon_button("chevron_right", "next page", lambda: go(1))
    add_keys({"p": ("previous page", lambda: go(-1)), "n": ("next page", lambda: go(1))})
    table = Table(columns, (), link, sortable=sortable)
    first = (number - 1) * PAGE_SIZE

    async def draw() -> None:
        nonlocal total
        rows, total = await opened.fetch(("rows", str(request.url)), lambda: find(PAGE_SIZE, first))
        table.show(rows)
        every, last = counted(total, noun), min(first + PAGE_SIZE, total)
        label.text = every if total <= PAGE_SIZE and number == 1 else f"{first + 1} to {last} of {every}"
        previous.set_visibility(number > 1)
        following.set_visibility(last < total)

    await draw()
    page.refresh_with(opened, draw)
    page.once(table.focus)


def add_turn_pager(first: int, total: int) -> None:
    """Add the line that leads to other parts of an episode of more than `PART` turns, by the parameter `turn`.

    Args:
        first: number of the first turn of the part, from 1.
        total: number of turns of the episode.
    """
    if total <= PART:
        return
    places = {"first": 1, f"previous {PART}": first - PART, f"next {PART}": first + PART, "last": total}
    with ui.row().classes("items-center gap-4"):
        ui.label(f"turns {first:,} to {min(first + PART - 1, total):,} of {total:,}")
        for name, turn in places.items():
            if 0 < turn <= total:
                ui.link(name, here(turn=turn))
        go = ui.number("go to turn", min=1, max=total, precision=0).props("dense outlined").classes("w-32")
        go.on("keydown.enter", lambda: ui.navigate.to(here(turn=int(go.value or 1))))
