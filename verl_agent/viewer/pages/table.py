"""Table of all pages: its rows follow a run in place, keys move between them, headers set the order in the URL."""

import json
from collections.abc import Callable, Iterable, Sequence
from html import escape

from nicegui import ui

from verl_agent.viewer.episode_html import html
from verl_agent.viewer.links import here
from verl_agent.viewer.table_html import Link, TableRow, table_html

_SHOW = """(id, content) => {
  const box = getHtmlElement(id), at = document.activeElement?.getAttribute('href');
  box.innerHTML = content;
  if (at) [...box.querySelectorAll('a')].find(link => link.getAttribute('href') === at)?.focus({preventScroll: true});
}"""
"""Script that shows other rows; the focus stays on its row."""
_MOVE = """(event) => {
  const by = {ArrowDown: 1, ArrowUp: -1}[event.key], rows = [...event.currentTarget.querySelectorAll('a.whole')];
  const next = by && rows[rows.indexOf(document.activeElement) + by];
  if (!next) return;
  event.preventDefault();
  next.focus();
}"""
"""Script that moves the focus to the row below or above."""


class Table:
    """Table on a page. The keys ArrowDown and ArrowUp move between its rows, Enter opens one.

    Args:
        link: function that returns the URL that a row opens.
        sortable: True for headers that set the parameter `sort` of the URL: a column, after a minus sign descending.
    """

    def __init__(
        self,
        columns: Sequence[str],
        rows: Iterable[TableRow] = (),
        link: Callable[[TableRow], str] | None = None,
        *,
        sortable: bool = False,
    ) -> None:
        self._columns, self._link = columns, link
        self._sort = ui.context.client.request.query_params.get("sort", "")
        self._heads = {name: self._head(name) for name in columns} if sortable else None
        self._element = ui.html(self._render(rows), sanitize=False).classes("w-full overflow-x-auto")
        self._element.on("keydown", js_handler=_MOVE)

    def show(self, rows: Iterable[TableRow]) -> None:
        """Show other rows in place: scroll and focus stay."""
        content, props = self._render(rows), self._element.props
        if not self._element.client.has_socket_connection:
            props["innerHTML"] = content
            return
        with props.suspend_updates():  # an update would replace the focused element
            props["innerHTML"] = content
        ui.run_javascript(f"({_SHOW})({self._element.id}, {json.dumps(content)})")

    def focus(self) -> None:
        """Give the first row the focus."""
        ui.run_javascript(f"getHtmlElement({self._element.id}).querySelector('a.whole')?.focus()")

    def _render(self, rows: Iterable[TableRow]) -> str:
        return table_html(self._columns, rows, self._link, self._heads)

    def _head(self, name: str) -> str:
        descending = self._sort.startswith("-")
        chosen = self._sort.removeprefix("-") == name
        following = ("" if descending else f"-{name}") if chosen else name
        mark = (" ▼" if descending else " ▲") if chosen else ""
        return f'<a href="{escape(here(sort=following, page=""))}">{html(name.replace("_", " "))}{mark}</a>'


def add_sorted_table(
    columns: Sequence[str], rows: Sequence[TableRow], link: Callable[[TableRow], str] | None = None
) -> Table:
    """Add a table of rows that are all given, in the order that the parameter `sort` of the URL chooses."""
    order = ui.context.client.request.query_params.get("sort", "")
    return Table(columns, in_order(rows, order), link, sortable=True)


def in_order(rows: Iterable[TableRow], order: str) -> list[TableRow]:
    """Return rows in the order of a column, after a minus sign descending; as given if no row has it."""
    name = order.removeprefix("-")
    return sorted(rows, key=lambda row: _order(row.get(name)), reverse=order.startswith("-"))


def _order(value: object) -> tuple[int, float, str]:
    """Return the place of a value in an order: missing ones, numbers, texts."""
    value = value.text if isinstance(value, Link) else value
    return (1, float(value), "") if isinstance(value, int | float) else (0 if value is None else 2, 0.0, str(value))


def add_text_table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """Add a table of texts: names of the columns, and the cells of each row."""
    return Table(names, (dict(zip(names, row, strict=True)) for row in rows))
