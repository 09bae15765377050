"""Table whose rows open by a click or by Enter."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from typing import Any

from nicegui import ui
from nicegui.events import GenericEventArguments

from verl_agent.viewer.text import short_name
from verl_agent.visible import make_visible

Row = Mapping[str, Any]
_NUMBER = "#"
"""Field of a row with its number among those given, whose texts are as they were recorded."""
NARROW = 640
"""Width of a window in pixels up to which it is narrow; `theme.css` has the same."""


def add_grid(
    columns: Sequence[str],
    rows: Sequence[Row],
    open_row: Callable[[Row, str], None],
    *,
    sortable: bool | str = False,
    fits: bool = False,
    narrow: Sequence[str] = (),
    wide: Sequence[str] = (),
) -> ui.aggrid:
    """Add a table.

    Args:
        rows: values by column; values of other names are not shown.
        open_row: called with the row and the name of the column.
        sortable: True if the rows are all there are, so that the browser may sort and filter them. A text is the order
            of the server: a column, after a minus sign in descending order, "" for its own order. A click on a header
            then sets the parameter `sort` of the URL.
        fits: True for a table as high as its rows, False for one that scrolls.
        narrow: columns that a narrow window shows; empty for all.
        wide: columns that are twice as wide as the others.
    """
    given = list(rows)
    hidden = json.dumps([name for name in columns if narrow and name not in narrow])
    options = {
        "columnDefs": [
            {
                "field": name,
                "headerName": name.replace("_", " "),
                "sortable": sortable is not False,
                "filter": sortable is True,
                **_sorting(name, sortable),
                "flex": 2 if name in ("task", *wide) else 1,
                "minWidth": 120 if name in ("task", *wide) else 72,
                "wrapText": True,
                "autoHeight": True,
                "wrapHeaderText": True,
                "autoHeaderHeight": True,
            }
            for name in columns
        ],
        ":onGridSizeChanged": f"(e) => e.api.setColumnsVisible({hidden}, e.clientWidth > {NARROW})",
        "rowData": shown_rows([{**row, _NUMBER: number} for number, row in enumerate(given)]),
        ":onCellKeyDown": "(e) => e.event.key === 'Enter' && e.event.target.click()",
        **({"domLayout": "autoHeight"} if fits else {}),
        ":getRowId": f"(p) => String(p.data['{_NUMBER}'] ?? p.data.id)",  # new rows leave scroll and focus in place
        **({":onSortChanged": _SORT} if isinstance(sortable, str) else {}),
    }
    grid = ui.aggrid(options).classes("w-full").style("height: auto" if fits else "height: 65vh")

    def clicked(event: GenericEventArguments) -> None:
        row = event.args["data"]
        open_row(given[row[_NUMBER]] if _NUMBER in row else row, event.args["colId"])

    grid.on("cellClicked", clicked)
    return grid


_SORT = """(e) => {
  const column = e.api.getColumnState().find((one) => one.sort), url = new URL(location);
  const sort = column ? (column.sort === 'desc' ? '-' : '') + column.colId : '';
  if (sort === (url.searchParams.get('sort') ?? '')) return;
  if (sort) url.searchParams.set('sort', sort); else url.searchParams.delete('sort');
  url.searchParams.delete('page');
  location = url;
}"""
"""Script that asks the server for the order that a click on a header has chosen."""


def _sorting(name: str, order: bool | str) -> dict[str, Any]:
    """Return the options of a column whose rows the server sorts."""
    if not isinstance(order, str):
        return {}
    chosen = {"sort": "desc" if order.startswith("-") else "asc"} if order.removeprefix("-") == name else {}
    return {":comparator": "() => 0", **chosen}


def replace_rows(grid: ui.aggrid, rows: Iterable[Row]) -> None:
    """Show other rows in place, each of which has an `id`; its texts are made short and visible."""
    shown = shown_rows(rows)
    if grid.client.has_socket_connection:
        grid.run_grid_method("setGridOption", "rowData", shown)
    else:  # an update builds the whole table anew
        grid.options["rowData"] = shown


def shown_rows(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """Return rows whose texts are short and visible, for a grid."""
    return [
        {name: short_name(value) if isinstance(value, str) else value for name, value in row.items()} for row in rows
    ]


def add_plain_table(rows: Iterable[Sequence[str]], names: Sequence[str] = ()) -> ui.html:
    """Add a table of one element; a narrow window shows each row on several lines.

    Args:
        rows: cells as HTML; see `text_cell` and `link_cell`.
        names: names of the columns; empty for a table without a head.
    """
    heads = [text_cell(name) for name in names]
    marks = [f' data-name="{head}"' for head in heads]
    lines = ["<tr>" + "".join(f"<th>{head}</th>" for head in heads) + "</tr>"] if heads else []
    for row in rows:
        cells = (f"<td{mark}>{cell}</td>" for mark, cell in zip(marks or [""] * len(row), row, strict=True))
        lines.append(f"<tr>{''.join(cells)}</tr>")
    table = f'<table class="plain-table stacked">{"".join(lines)}</table>'
    return ui.html(table, sanitize=False).classes("w-full overflow-x-auto" + (" named" if heads else ""))


def text_cell(text: str) -> str:
    """Return a text as HTML."""
    return escape(make_visible(text))


def link_cell(text: str, url: str) -> str:
    """Return a link as HTML."""
    return f'<a href="{escape(url)}">{text_cell(text)}</a>'


def focus_first_row(grid: ui.aggrid, column: str) -> None:
    """Give the first row the focus when the page is shown, so that arrow keys and Enter work at once."""
    ui.timer(0.3, lambda: grid.run_grid_method("setFocusedCell", 0, column), once=True)


def add_table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> ui.html:
    """Add a plain table of texts: names of the columns, and the cells of each row."""
    return add_plain_table(([text_cell(text) for text in row] for row in rows), names)
