"""Leaderboard of the opened evaluations, and test-time scaling of one of them."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from nicegui import ui

from verl_agent.results.folder import REPORT
from verl_agent.results.leaderboard import Board, make_boards
from verl_agent.results.leaderboard_report import (
    PAIR_COLUMNS,
    cells,
    columns,
    condition_texts,
    conditions,
    difference_cells,
    notes,
    short_conditions,
)
from verl_agent.results.scaling import ScalingCurve
from verl_agent.results.scaling_report import describe_selection, read_scaling
from verl_agent.trace.panels import COLORS
from verl_agent.trace.run_panels import MOST_CURVES
from verl_agent.viewer.axes import SHARES, axis_of, band
from verl_agent.viewer.figure import add_chart
from verl_agent.viewer.layout import add_heading, link_to, new_page, run_path, show_text, url_of
from verl_agent.viewer.pages.grid import add_table
from verl_agent.viewer.state import ViewerState
from verl_agent.visible import make_visible


def add(state: ViewerState) -> None:
    """Register the pages `/leaderboard` and `/run/<key>/scaling`."""

    @url_of("/leaderboard")
    async def leaderboard() -> None:
        evaluations = [one for one in state.opened.values() if (one.source.folder / REPORT).is_file()]
        with new_page(state) as page:
            page.set_title("leaderboard")
            if not evaluations:
                ui.label("No evaluation is open. Open the output folders of `verl-agent eval`, or a folder of them.")
                return
            name = ("boards", *(part for one in evaluations for part in (one.key, one.changes)))
            folders = [one.source.folder for one in evaluations]
            boards, broken = await evaluations[0].fetch(name, lambda: _read_boards(folders))
            for number, board in enumerate(boards):
                others = [other for other in boards if other.env == board.env and other is not board]
                repeated = any(other.env == board.env for other in boards[:number])
                _show_board(replace(board, published={}) if repeated else board, others)
            add_heading("Evaluations")
            for one in evaluations:
                with ui.row().classes("gap-x-4"):
                    ui.link(one.key, link_to(run_path(one)))
                    ui.link("scaling", link_to(run_path(one, "/scaling")))
                    ui.link("failures", link_to(run_path(one, "/failures")))
                    if one.source.folder in broken:
                        ui.label(make_visible(broken[one.source.folder])).classes("bad-text break-all")

    @url_of("/run/{key}/scaling")
    async def scaling(key: str) -> None:
        with new_page(state) as page:
            opened = page.open(key, f"{key}: scaling")
            found = await opened.fetch("scaling", lambda: read_scaling(opened.source.folder))
            with ui.element("div").classes("sides"):
                for unit in dict.fromkeys(curve.unit for curve in found.curves):
                    curves = [curve for curve in found.curves if curve.unit == unit]
                    notes = "; ".join(f"{curve.name}: {curve.meaning}" for curve in curves)
                    note = f"{notes}. Bands: 95 % intervals over tasks."
                    add_chart(f"Success over {unit}", _chart(unit, curves), note)
            if found.selections:
                add_heading("Best of n")
            for selection in found.selections:
                show_text(describe_selection(selection))


def _read_boards(folders: Sequence[Path]) -> tuple[list[Board], dict[Path, str]]:
    """Return the boards of evaluations, and the message about each one that cannot be read."""
    broken: dict[Path, str] = {}
    return make_boards(folders, broken), broken


def _show_board(board: Board, others: Sequence[Board]) -> None:
    """Show a board. Conditions that differ from those of another board of the environment are shown in bold."""
    add_heading(short_conditions(board))
    texts = condition_texts(board)
    differing = [name for name in texts if any(condition_texts(other).get(name) != texts[name] for other in others)]
    if differing:
        with ui.row().classes("gap-x-4 gap-y-1"):
            ui.label("Unlike another board:").classes("muted")
            for name in differing:
                ui.label(f"{name} {make_visible(texts[name])}").classes("font-bold break-all")
    with (
        ui.expansion("Conditions of the rows that were played here" if board.published else "All conditions")
        .props("dense")
        .classes("w-full")
    ):
        show_text(conditions(board), "muted")
    add_table(columns(board), cells(board)).mark(f"board {board.env}")
    priced = [(row, *row.priced) for row in board.rows if row.priced]
    if priced:
        most = max(cost for _, cost, _ in priced)
        points = [
            {
                "name": row.label,
                "value": [cost, success.mean],
                "symbolSize": 14 if row.pareto else 8,
                "label": {"position": "left" if cost > most / 2 else "right"},
            }
            for row, cost, success in priced
        ]
        marks = {"show": True, "formatter": "{b}", "width": 180, "overflow": "break", "lineHeight": 15}
        options = {
            "tooltip": {"trigger": "item"},
            "xAxis": axis_of("USD per episode"),
            "yAxis": SHARES,
            "series": [{"type": "scatter", "data": points, "label": marks}],
        }
        add_chart("Cost against success", options, "Large points: no other is better at a cost that is not higher.")
    if board.differences:
        add_table(PAIR_COLUMNS, difference_cells(board))
    for note in notes(board):
        ui.label(note).classes("muted")


def _chart(unit: str, curves: Sequence[ScalingCurve]) -> dict[str, Any]:
    """Return the options of a chart with the curves of one unit and their intervals."""
    series: list[dict[str, Any]] = []
    for curve, color in zip(curves[:MOST_CURVES], COLORS, strict=False):
        means = [[amount, one.mean] for amount, one in curve.points.items()]
        series.append({"name": curve.name, "type": "line", "data": means, "symbol": "circle", "color": color})
        series += band(curve.name, color, [(amount, one.low, one.high) for amount, one in curve.points.items()])
    return {"xAxis": axis_of(unit), "yAxis": SHARES, "series": series}
