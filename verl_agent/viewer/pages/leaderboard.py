"""Leaderboard of the opened evaluations, and test-time scaling of one of them."""

from collections.abc import Sequence
from typing import Any

from nicegui import ui

from verl_agent.results.folder import REPORT
from verl_agent.results.leaderboard import Board, make_boards
from verl_agent.results.leaderboard_report import PAIR_COLUMNS, cells, columns, conditions, notes, pairs
from verl_agent.results.scaling import ScalingCurve
from verl_agent.results.scaling_report import describe_selection, read_scaling
from verl_agent.viewer.layout import frame, link_to, run_path, show_text, url_of
from verl_agent.viewer.pages.grid import add_table
from verl_agent.viewer.state import ViewerState


def add(state: ViewerState) -> None:
    """Register the pages `/leaderboard` and `/run/<key>/scaling`."""

    @url_of("/leaderboard")
    async def leaderboard() -> None:
        evaluations = [one for one in state.opened.values() if (one.source.folder / REPORT).is_file()]
        with frame(state) as page:
            page.set_title("leaderboard")
            if not evaluations:
                ui.label("No evaluation is open. Open the output folders of `verl-agent eval`, or a folder of them.")
                return
            name = ("boards", *(part for one in evaluations for part in (one.key, one.changes)))
            boards = await evaluations[0].fetch(name, lambda: make_boards([one.source.folder for one in evaluations]))
            for board in boards:
                _show_board(board)
            ui.label("Success over turns, samples, tokens and cost; and failed episodes").classes("text-lg")
            for one in evaluations:
                with ui.row():
                    ui.link(one.key, link_to(run_path(one, "/scaling")))
                    ui.link("failures", link_to(run_path(one, "/failures")))

    @url_of("/run/{key}/scaling")
    async def scaling(key: str) -> None:
        with frame(state) as page:
            opened = page.open(key, f"{key}: scaling")
            found = await opened.fetch("scaling", lambda: read_scaling(opened.source.folder))
            for unit in dict.fromkeys(curve.unit for curve in found.curves):
                ui.echart(_chart(unit, [curve for curve in found.curves if curve.unit == unit])).classes("w-full h-72")
            for curve in found.curves:
                ui.label(f"{curve.name}: {curve.meaning}").classes("text-sm")
            if found.selections:
                ui.label("Best of n").classes("text-lg")
            for selection in found.selections:
                show_text(describe_selection(selection))


def _show_board(board: Board) -> None:
    ui.label(f"{board.env}, conditions {board.key}").classes("text-lg")
    show_text(conditions(board), "text-gray-600")
    add_table(columns(board), cells(board)).mark(f"board {board.env}")
    priced = [row for row in board.rows if row.cost_usd is not None and row.overall.success is not None]
    if priced:
        points = [
            {
                "name": row.label,
                "value": [row.cost_usd, row.overall.success.mean],
                "symbolSize": 14 if row.pareto else 8,
            }
            for row in priced
            if row.overall.success is not None
        ]
        ui.echart(
            {
                "title": {"text": "Cost against success; large: no other is better at a cost that is not higher"},
                "tooltip": {},
                "xAxis": {"type": "value", "name": "USD"},
                "yAxis": {"type": "value", "min": 0, "max": 1},
                "animation": False,
                "series": [
                    {
                        "type": "scatter",
                        "data": points,
                        "label": {"show": True, "formatter": "{b}", "position": "right"},
                    }
                ],
            }
        ).classes("w-full h-72")
    if board.differences:
        add_table(PAIR_COLUMNS, pairs(board))
    for note in notes(board):
        ui.label(note).classes("text-sm text-gray-600")


def _chart(unit: str, curves: Sequence[ScalingCurve]) -> dict[str, Any]:
    """Return the options of a chart with the curves of one unit and their intervals."""
    series: list[dict[str, Any]] = []
    for curve in curves:
        means = [[amount, one.mean] for amount, one in curve.points.items()]
        series.append({"name": curve.name, "type": "line", "data": means, "symbolSize": 5})
        for end in ("low", "high"):
            limits = [[amount, getattr(one, end)] for amount, one in curve.points.items()]
            line = {"type": "dotted", "width": 1}
            series.append(
                {
                    "name": f"{curve.name}, 95 % {end}",
                    "type": "line",
                    "data": limits,
                    "showSymbol": False,
                    "lineStyle": line,
                }
            )
    return {
        "title": {"text": f"Success over {unit}", "textStyle": {"fontSize": 13}},
        "tooltip": {"trigger": "axis"},
        "legend": {"type": "scroll", "bottom": 0},
        "grid": {"left": 55, "right": 15, "top": 35, "bottom": 55},
        "xAxis": {"type": "value", "name": unit, "nameLocation": "middle", "nameGap": 22},
        "yAxis": {"type": "value", "min": 0, "max": 1},
        "animation": False,
        "series": series,
    }
