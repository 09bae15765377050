"""Command `verl-agent scaling`: success of an evaluation over turns, samples, tokens and cost."""

from pathlib import Path
from typing import Annotated

import typer

from verl_agent.commands.terminal import fail, print_line
from verl_agent.errors import ConfigError


def scaling(
    folders: Annotated[list[Path], typer.Argument(help="Output folders of evaluations.", metavar="FOLDER...")],
) -> None:
    """Compute success over turns, samples, tokens and cost, and best-of-n by selector, from recorded episodes.

    Writes scaling.json and scaling.png into each folder.
    """
    from verl_agent.results.scaling_report import describe_ends, describe_selection, read_scaling, write_scaling

    for folder in folders:
        try:
            found = read_scaling(folder)
        except ConfigError as error:
            fail(str(error))
        print_line(f"{folder}: {found.model}")
        for curve in found.curves:
            print_line(f"  {curve.name}, {curve.meaning}: {describe_ends(curve)}")
        for selection in found.selections:
            print_line(f"  best of n by {describe_selection(selection)}")
        for path in write_scaling(found, folder):
            print_line(f"wrote {path}")
