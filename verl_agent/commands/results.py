"""Commands that read episodes: `verl-agent leaderboard`, `scaling`, `failures` and `judge-agreement`."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from verl_agent.commands.terminal import print_line
from verl_agent.errors import counted
from verl_agent.system.resources import make_folder


@contextmanager
def _without_collection() -> Iterator[None]:
    """Pause Python's garbage collector, which walks all records again and again; a report makes few cycles."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@_without_collection()
def scaling(
    folders: Annotated[list[Path], typer.Argument(help="Output folders of evaluations.", metavar="FOLDER...")],
) -> None:
    """Compute success over turns, samples, tokens and cost, and best-of-n by selector, from recorded episodes.

    Writes scaling.json and scaling.png into each folder.
    """
    from verl_agent.results.scaling_report import describe_ends, describe_selection, read_scaling, write_scaling

    for folder in folders:
        print_line(f"reading {folder} ...")
        found = read_scaling(folder)
        print_line(f"{folder}: {found.model}")
        for curve in found.curves:
            print_line(f"  {curve.name}, {curve.meaning}: {describe_ends(curve)}")
        for selection in found.selections:
            print_line(f"  best of n by {describe_selection(selection)}")
        make_folder(folder, "FOLDER")
        for path in write_scaling(found, folder):
            print_line(f"wrote {path}")


@_without_collection()
def leaderboard(
    folders: Annotated[list[Path], typer.Argument(help="Output folders of evaluations, or folders that contain them.")],
    into: Annotated[Path, typer.Option(help="Folder to write.")] = Path("runs/leaderboard"),
) -> None:
    """Compare evaluations: success by category, cost, and differences paired by task.

    Rows stand in one table only if tasks, options, agent, limits, sampling and version are equal.
    """
    from verl_agent.results.leaderboard import make_boards
    from verl_agent.results.leaderboard_report import short_conditions, write_leaderboard

    print_line(f"reading {counted(len(folders), 'folder')} ...")
    boards = make_boards(folders)
    for board in boards:
        print_line(f"{short_conditions(board)} (conditions {board.key}):")
        for row in board.rows:
            print_line(f"  {row.label}: {row.overall}")
    make_folder(into, "--into")
    for path in write_leaderboard(boards, into):
        print_line(f"wrote {path}")


@_without_collection()
def failures(
    folder: Annotated[Path, typer.Argument(help="Output folder of an evaluation.")],
    category: Annotated[str | None, typer.Option(help="Only this category of tasks. Default: all.")] = None,
) -> None:
    """Analyze failed episodes: behaviors, first divergence from the oracle's plan, and missed sub-goals.

    Writes failures.json and failures.md into the folder.
    """
    from verl_agent.results.failures_report import analyze_failures, short_summary, write_failures

    print_line(f"reading {folder} ...")
    summaries, failed = analyze_failures(folder, category)
    make_folder(folder, "FOLDER")
    written = write_failures(summaries, failed, folder)
    for summary in summaries:
        print_line(short_summary(summary))
    if not summaries:
        print_line("No valid episode failed.")
    for path in written:
        print_line(f"wrote {path}")


def judge_agreement(
    run: Annotated[Path, typer.Argument(help="Folder of an evaluation or a run whose episodes a judge graded.")],
    labels: Annotated[Path, typer.Option(help="Labels of people: JSON lines or CSV with `task` and `label`.")],
    threshold: Annotated[float, typer.Option(help="Score and label from which an episode passed.", min=0, max=1)] = 0.5,
) -> None:
    """Compare a judge with people's labels: agreement and Cohen's kappa with intervals, by criterion.

    Writes judge_agreement.json into the folder of the labels.
    """
    from verl_agent.results.judge_agreement import compare_labels, read_labels
    from verl_agent.trace.provenance import write_result

    found, unjudged = compare_labels(run, read_labels(labels), threshold)
    for one in found:
        passed = f"passed: judge {one.judge_passed}, people {one.person_passed}"
        kappa = "not defined: all verdicts are equal" if one.kappa is None else one.kappa
        print_line(
            f"{one.criterion}: {counted(one.labels, 'label')}, {passed}, agreement {one.agreement}, kappa {kappa}"
        )
    if unjudged:
        print_line(f"{counted(len(unjudged), 'label')} without a judgement, the first: {unjudged[0]}")
    facts = {"run": str(run), "labels": str(labels), "threshold": threshold, "unjudged": len(unjudged)}
    path = labels.with_name("judge_agreement.json")
    print_line(f"wrote {write_result(path, 1, {**facts, 'criteria': [asdict(one) for one in found]})}")
