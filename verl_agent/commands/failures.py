"""Command `verl-agent failures`: what the failed episodes of an evaluation have in common."""

from pathlib import Path
from typing import Annotated

import typer

from verl_agent.commands.terminal import fail, print_line
from verl_agent.errors import AgentError


def failures(
    folder: Annotated[Path, typer.Argument(help="Output folder of an evaluation.")],
    category: Annotated[str | None, typer.Option(help="Only this category of tasks. Default: all.")] = None,
) -> None:
    """Analyze failed episodes: behaviors, first divergence from the oracle's plan, and missed sub-goals.

    Writes failures.json and failures.md into the folder.
    """
    from verl_agent.results.failures_report import analyze_failures, short_summary, write_failures

    try:
        summaries, failed = analyze_failures(folder, category)
    except AgentError as error:
        fail(str(error))
    for summary in summaries:
        print_line(short_summary(summary))
    if not summaries:
        print_line("No valid episode failed.")
    for path in write_failures(summaries, failed, folder):
        print_line(f"wrote {path}")
