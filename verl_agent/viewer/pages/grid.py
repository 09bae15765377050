"""Table whose rows open by a click or by Enter."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nicegui import ui

Row = Mapping[str, Any]


def add_grid(
    columns: Sequence[str],
    rows: Sequence[Row],
    open_row: Callable[[Row, str], None],
    *,
    sortable: bool = False,
    fits: bool = False,
) -> ui.aggrid:
    """Add a table.

    Args:
        columns: names of the columns.
        rows: values by column; values of other names are not shown.
        open_row: called with the row and the name of the column.
        sortable: True if the rows are all there are, so that the browser may sort and filter them.
        fits: True for a table as high as its rows, False for one that scrolls.
    """
    options = {
        "columnDefs": [
            {
                "field": name,
                "sortable": sortable,
                "filter": sortable,
                "flex": 2 if name == "task" else 1,
                "minWidth": 160 if name == "task" else 95,  # a narrow window scrolls the table, not the page
            }
            for name in columns
        ],
        "rowData": list(rows),
        ":onCellKeyDown": "(e) => e.event.key === 'Enter' && e.event.target.click()",
        **({"domLayout": "autoHeight"} if fits else {}),
    }
    grid = ui.aggrid(options).classes("w-full" if fits else "w-full h-[65vh]")
    grid.on("cellClicked", lambda event: open_row(event.args["data"], event.args["colId"]))
    return grid


def focus_first_row(grid: ui.aggrid, column: str) -> None:
    """Give the first row the focus when the page is shown, so that arrow keys and Enter work at once."""
    ui.timer(0.3, lambda: grid.run_grid_method("setFocusedCell", 0, column), once=True)


def add_table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> ui.table:
    """Add a plain table of texts: names of the columns, and the cells of each row."""
    heads = [{"name": str(at), "label": name, "field": str(at), "align": "left"} for at, name in enumerate(names)]
    data = [{str(at): cell for at, cell in enumerate(row)} | {"id": number} for number, row in enumerate(rows)]
    return (
        ui.table(columns=heads, rows=data, row_key="id")
        .props("dense flat wrap-cells")
        .classes("w-full overflow-x-auto")
    )
