"""Tables of all pages and exports as HTML: texts are escaped, rows and cells may be links."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

from verl_agent.viewer.episode_html import html
from verl_agent.viewer.text import short_name

TableRow = dict[str, Any]


class Link(NamedTuple):
    """Cell that leads to a page."""

    text: object
    url: str


def table_html(
    columns: Sequence[str],
    rows: Iterable[TableRow],
    link: Callable[[TableRow], str] | None = None,
    heads: Mapping[str, str] | None = None,
    attributes: Callable[[TableRow], str] | None = None,
) -> str:
    """Return a table as HTML; a narrow window shows each row on several lines.

    Args:
        rows: values by column, numbers, texts or `Link`; None for an empty cell.
        link: function that returns the URL that a row opens.
        heads: HTML of a header, by column; the name of the column unless given.
        attributes: function that returns attributes of the element of a row, as HTML.
    """
    names = {name: html(name.replace("_", " ")) for name in columns}
    head = "".join(f"<th>{(heads or names)[name]}</th>" for name in columns)
    lines = []
    for row in rows:
        cells = [_cell(row.get(name)) for name in columns]
        if link is not None:
            cells[0] = f'<a class="whole" href="{escape(link(row))}">{cells[0] or "·"}</a>'
        shown = (f'<td data-name="{names[name]}">{cell}</td>' for name, cell in zip(columns, cells, strict=True))
        lines.append(f"<tr{attributes(row) if attributes else ''}>{''.join(shown)}</tr>")
    return f'<table class="table"><thead><tr>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table>'


def _cell(value: object) -> str:
    if isinstance(value, Link):
        return f'<a href="{escape(value.url)}">{_cell(value.text)}</a>'
    return "" if value is None else html(short_name(value) if isinstance(value, str) else value)
