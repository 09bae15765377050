"""Command `verl-agent suite`: play a list of evaluation recipes with one or several models."""

from pathlib import Path
from typing import Annotated

import typer

from verl_agent.commands.recipes import copy_hint
from verl_agent.commands.terminal import fail, print_line
from verl_agent.terminal import Console, show_table


def suite(
    file: Annotated[Path, typer.Argument(help="Suite file, such as recipes/paper27.yaml.", metavar="SUITE")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            help="Settings of all evaluations, or of one: NAME:KEY=VALUE.", metavar="KEY=VALUE", show_default=False
        ),
    ] = None,
    model: Annotated[
        list[str] | None, typer.Option(help="Model, as in model.path; repeat it to compare several models.")
    ] = None,
    only: Annotated[list[str] | None, typer.Option(help="Play only this evaluation; may be repeated.")] = None,
    into: Annotated[Path | None, typer.Option(help="Folder to write. Default: runs/suite/<name of SUITE>.")] = None,
) -> None:
    """Play all evaluations of a suite and compare them by category; the same command resumes an interrupted one.

    Evaluations whose outside data or sites are missing are skipped by name. With several models, a table shows each
    model on each environment.
    """
    if not file.is_file() and (hint := copy_hint(file)):
        fail(f"suite {str(file)!r} does not exist. {hint}")
    from verl_agent.evaluation.suite.report import SuiteReport, with_earlier
    from verl_agent.evaluation.suite.run import models_of, play_suite
    from verl_agent.evaluation.suite.settings import read_suite
    from verl_agent.results.leaderboard import make_boards
    from verl_agent.results.leaderboard_report import write_leaderboard

    try:
        chosen = read_suite(file, overrides or [], only or [])
        folder = into or Path("runs/suite") / file.stem
        outcomes = play_suite(chosen, models_of(chosen, model or []), folder, Console())
    except KeyboardInterrupt:
        print_line("Stopped. Run the same command again to resume.")
        raise
    covered = with_earlier(chosen, outcomes, folder)
    report = SuiteReport(chosen, covered)
    written = report.write(folder)
    measured = [outcome.folder for outcome in covered if outcome.status in ("played", "partial")]
    if measured:
        written += write_leaderboard(make_boards(measured), folder)
    show_table(Console(), report.table())
    for outcome in outcomes:
        if outcome.reason:
            print_line(f"{outcome.model}: {outcome.evaluation} {outcome.status}: {outcome.reason}")
    for path in written:
        print_line(f"wrote {path}")
    raise typer.Exit(code=2 if any(outcome.status in ("partial", "failed") for outcome in outcomes) else 0)
