"""Two runs, checkpoints or evaluations, paired by task: solved to failed and back."""

from nicegui import ui
from starlette.requests import Request

from verl_agent.errors import ConfigError
from verl_agent.viewer.filters import Filter
from verl_agent.viewer.layout import frame, link_to, run_path, show_error
from verl_agent.viewer.queries import TaskPair, pair_tasks
from verl_agent.viewer.state import OpenedSource, ViewerState

CONDITIONS = ("step", "purpose", "env", "category", "split")
"""Conditions on either side, as parameters `a_<name>` and `b_<name>`."""


def add(state: ViewerState) -> None:
    """Register the page `/compare?a=<key>&b=<key>`, with conditions such as `a_step=0&b_step=80`."""

    @ui.page("/compare")
    def compare(request: Request) -> None:
        query = request.query_params
        keys = list(state.opened)
        try:
            sides = [state.get(query.get("a", keys[0])), state.get(query.get("b", keys[-1]))]
            given = [
                {name: query[f"{side}_{name}"] for name in CONDITIONS if f"{side}_{name}" in query} for side in "ab"
            ]
            chosen = Filter.parse(given[0]), Filter.parse(given[1])
        except ConfigError as error:
            with frame(state):
                show_error(error)
            return
        with frame(state, None, "compare"):
            _choices(state, sides, given)
            _result(sides, given, pair_tasks(sides[0].index, sides[1].index, chosen))


def _choices(state: ViewerState, sides: list[OpenedSource], given: list[dict[str, str]]) -> None:
    fields: dict[str, ui.select | ui.input] = {}

    def go() -> None:
        ui.navigate.to(link_to("/compare", {name: entry.value for name, entry in fields.items()}))

    for side, opened, values in zip("ab", sides, given, strict=True):
        with ui.row().classes("items-end gap-2"):
            fields[side] = ui.select(list(state.opened), value=opened.key, label=f"run {side.upper()}").classes("w-64")
            for name in CONDITIONS:
                entry = ui.input(name, value=values.get(name, "")).props("dense outlined").classes("w-32")
                fields[f"{side}_{name}"] = entry.on("keydown.enter", go)
    ui.button("Compare", on_click=go).props("dense")


def _result(sides: list[OpenedSource], given: list[dict[str, str]], pairs: list[TaskPair]) -> None:
    if not pairs:
        ui.label("No task occurs on both sides. Choose other runs, steps or purposes.")
        return
    change = [pair.success[1] - pair.success[0] for pair in pairs]
    better, worse = sum(value > 0 for value in change), sum(value < 0 for value in change)
    ui.label(f"{len(pairs)} tasks on both sides: {better} solved more often, {worse} less often.")
    rows = [
        {
            "env": pair.env,
            "category": pair.category,
            "task": pair.task,
            "success A": round(pair.success[0], 3),
            "success B": round(pair.success[1], 3),
            "change": round(difference, 3),
            "return A": round(pair.reward[0], 4),
            "return B": round(pair.reward[1], 4),
            "episodes A": pair.episodes[0],
            "episodes B": pair.episodes[1],
        }
        for pair, difference in zip(pairs, change, strict=True)
    ]
    columns = [{"field": name, "sortable": True, "filter": True} for name in rows[0]]
    grid = ui.aggrid({"columnDefs": columns, "rowData": rows}).classes("w-full h-[60vh]")

    def open_task(event: object) -> None:
        row = event.args["data"]  # type: ignore[attr-defined]
        side = 0 if str(event.args["colId"]).endswith("A") else 1  # type: ignore[attr-defined]
        conditions = given[side] | {"env": row["env"], "task": row["task"]}
        ui.navigate.to(link_to(run_path(sides[side], "/episodes"), conditions))

    grid.on("cellClicked", open_task)
