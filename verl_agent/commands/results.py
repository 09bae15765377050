"""Commands that read finished evaluations: `verl-agent leaderboard`, `scaling` and `failures`."""

from pathlib import Path
from typing import Annotated

import typer

from verl_agent.commands.terminal import print_line
from verl_agent.system.resources import make_folder


def scaling(
    folders: Annotated[list[Path], typer.Argument(help="Output folders of evaluations.", metavar="FOLDER...")],
) -> None:
    """Compute success over turns, samples, tokens and cost, and best-of-n by selector, from recorded episodes.

    Writes scaling.json and scaling.png into each folder.
    """
    from verl_agent.results.scaling_report import describe_ends, describe_selection, read_scaling, write_scaling

    for folder in folders:
        found = read_scaling(folder)
        print_line(f"{folder}: {found.model}")
        for curve in found.curves:
            print_line(f"  {curve.name}, {curve.meaning}: {describe_ends(curve)}")
        for selection in found.selections:
            print_line(f"  best of n by {describe_selection(selection)}")
        make_folder(folder, "FOLDER")
        for path in write_scaling(found, folder):
            print_line(f"wrote {path}")


def leaderboard(
    folders: Annotated[list[Path], typer.Argument(help="Output folders of evaluations, or folders that contain them.")],
    into: Annotated[Path, typer.Option(help="Folder to write.")] = Path("runs/leaderboard"),
) -> None:
    """Compare evaluations: success by category, cost, and differences paired by task.

    Rows stand in one table only if tasks, options, agent, limits, sampling and version are equal.
    """
    from verl_agent.results.leaderboard import make_boards
    from verl_agent.results.leaderboard_report import short_conditions, write_leaderboard

    boards = make_boards(folders)
    for board in boards:
        print_line(f"{short_conditions(board)} (conditions {board.key}):")
        for row in board.rows:
            print_line(f"  {row.label}: {row.overall}")
    make_folder(into, "--into")
    for path in write_leaderboard(boards, into):
        print_line(f"wrote {path}")


def failures(
    folder: Annotated[Path, typer.Argument(help="Output folder of an evaluation.")],
    category: Annotated[str | None, typer.Option(help="Only this category of tasks. Default: all.")] = None,
) -> None:
    """Analyze failed episodes: behaviors, first divergence from the oracle's plan, and missed sub-goals.

    Writes failures.json and failures.md into the folder.
    """
    from verl_agent.results.failures_report import analyze_failures, short_summary, write_failures

    summaries, failed = analyze_failures(folder, category)
    for summary in summaries:
        print_line(short_summary(summary))
    if not summaries:
        print_line("No valid episode failed.")
    make_folder(folder, "FOLDER")
    for path in write_failures(summaries, failed, folder):
        print_line(f"wrote {path}")
