"""Pages of long tables and of long episodes: number in the URL, links to the pages before and after."""

from collections.abc import Callable

from nicegui import ui
from starlette.requests import Request

from verl_agent.errors import ConfigError, counted
from verl_agent.viewer.layout import add_keys, icon_button
from verl_agent.viewer.parsing import PART

LARGEST = 10**15 - 1
"""Largest number that a URL may have: SQLite holds it, also times the rows of a page."""


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


def add_pager(page: int, size: int, noun: str, url: Callable[[int], str]) -> Callable[[int], None]:
    """Add the line with the range of rows and the buttons.

    Args:
        page: number of the page, from 1.

    Returns:
        Function to call with the number of all rows, whenever it changes.
    """
    total = 0

    def go(number: int) -> None:
        if 1 <= number <= max(1, -(-total // size)):
            ui.navigate.to(url(number))

    with ui.row().classes("items-center gap-2"):
        label = ui.label()
        previous = icon_button("chevron_left", "previous page", lambda: go(page - 1))
        following = icon_button("chevron_right", "next page", lambda: go(page + 1))
    add_keys({"p": ("previous page", lambda: go(page - 1)), "n": ("next page", lambda: go(page + 1))})

    def set_total(count: int) -> None:
        nonlocal total
        total = count
        first, last = (page - 1) * size + 1, min(page * size, total)
        rows = counted(total, noun)
        label.text = rows if total <= size and page == 1 else f"{first} to {last} of {rows}"
        previous.set_visibility(page > 1)
        following.set_visibility(last < total)

    return set_total


def add_turn_pager(first: int, total: int, url: Callable[[int], str]) -> None:
    """Add the line that leads to other parts of an episode of more than `PART` turns.

    Args:
        first: number of the first turn of the part, from 1.
        total: number of turns of the episode.
        url: function that returns the URL of the part with a turn.
    """
    if total <= PART:
        return
    with ui.row().classes("items-center gap-4"):
        ui.label(f"turns {first:,} to {min(first + PART - 1, total):,} of {total:,}")
        if first > 1:
            ui.link(f"previous {PART}", url(max(1, first - PART)))
        if first + PART <= total:
            ui.link(f"next {PART}", url(first + PART))
        ui.link("first", url(1))
        ui.link("last", url(total))
        go = ui.number("go to turn", min=1, max=total, precision=0).props("dense outlined").classes("w-32")
        go.on("keydown.enter", lambda: ui.navigate.to(url(int(go.value or 1))))
