"""Command `verl-agent leaderboard`: compare evaluations of several models."""

from pathlib import Path
from typing import Annotated

import typer

from verl_agent.commands.terminal import fail, print_line
from verl_agent.errors import ConfigError


def leaderboard(
    folders: Annotated[list[Path], typer.Argument(help="Output folders of evaluations, or folders that contain them.")],
    into: Annotated[Path, typer.Option(help="Folder to write.")] = Path("runs/leaderboard"),
) -> None:
    """Compare evaluations: success by category, cost, and differences paired by task.

    Rows stand in one table only if tasks, options, agent, limits, sampling and version are equal.
    """
    from verl_agent.results.leaderboard import make_boards
    from verl_agent.results.leaderboard_report import short_conditions, write_leaderboard

    try:
        boards = make_boards(folders)
    except ConfigError as error:
        fail(str(error))
    for board in boards:
        print_line(f"{short_conditions(board)} (conditions {board.key}):")
        for row in board.rows:
            print_line(f"  {row.label}: {row.overall}")
    for path in write_leaderboard(boards, into):
        print_line(f"wrote {path}")
