"""Leaderboard of the opened evaluations."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

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
from verl_agent.viewer.elements import add_heading, show_text
from verl_agent.viewer.layout import new_page, url_of
from verl_agent.viewer.links import link_to, run_path
from verl_agent.viewer.pages.table import add_text_table
from verl_agent.viewer.state import ViewerState
from verl_agent.visible import make_visible


def add(state: ViewerState) -> None:
    """Register the page `/leaderboard`."""

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
    title = "Conditions of the rows that were played here" if board.published else "All conditions"
    with ui.expansion(title).props("dense").classes("w-full"):
        show_text(conditions(board), "muted")
    add_text_table(columns(board), cells(board))
    if board.differences:
        add_text_table(PAIR_COLUMNS, difference_cells(board))
    for note in notes(board):
        ui.label(note).classes("muted")
