"""Command `verl-agent what-if`: other replies at a recorded turn, and the effect of another action."""

import os
import shutil
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Annotated

import typer

from verl_agent.commands.terminal import print_line
from verl_agent.terminal import Console, show_table

if TYPE_CHECKING:  # imported by the command itself, since every other command would wait for them
    from verl_agent.evaluation.what_if.recorded import TurnQuestion
    from verl_agent.evaluation.what_if.results import Result


def what_if(  # noqa: PLR0913 - one for each option
    record: Annotated[
        str, typer.Argument(help="Recorded episode: FILE:LINE, as the viewer shows it.", metavar="RECORD")
    ],
    turn: Annotated[int, typer.Option(help="Number of the turn, from 1.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(help="Settings of an evaluation recipe in place of the recorded ones.", metavar="KEY=VALUE"),
    ] = None,
    action: Annotated[
        str | None, typer.Option(help="Take this action instead, play on, and compare with the recorded one.")
    ] = None,
    oracle: Annotated[bool, typer.Option("--oracle", help="The same with the action of the oracle.")] = False,
    samples: Annotated[int, typer.Option(help="Number of replies, or of episodes after each action.")] = 16,
    without_thought: Annotated[
        bool, typer.Option("--without-thought", help="Measure how often the action changes without the thought.")
    ] = False,
    recipe: Annotated[
        Path | None, typer.Option(help="Evaluation recipe, where the run's own settings are not known.")
    ] = None,
) -> None:
    """Ask a recorded turn: which other replies would the policy give, and would another action have been better?

    Replies and results are stored beside the records, in FILE.what_if; the viewer shows them. Settings are those that
    the run recorded.
    """
    from verl_agent.evaluation.what_if.recorded import TurnQuestion, find_episode
    from verl_agent.evaluation.what_if.results import results_file
    from verl_agent.evaluation.what_if.tables import result_tables

    question = TurnQuestion(find_episode(record), turn, samples, action, oracle, without_thought)
    results = _ask(question, overrides or [], recipe)
    console = Console()
    for table in result_tables(results, question.recorded_action):
        show_table(console, table)
    print_line(f"stored: {results_file(question.recorded.file)}")


def _ask(question: "TurnQuestion", overrides: Sequence[str], recipe: Path | None) -> list["Result"]:
    """Answer the question; the output of libraries goes to a log, which is kept after a failure."""
    from verl_agent.evaluation.what_if.run import answer_question
    from verl_agent.evaluation.what_if.settings import settings_of
    from verl_agent.runs.console import errors_in, redirect_output

    sys.path.insert(0, os.getcwd())  # python:MODULE:NAME, as in `verl-agent eval`, which runs as `python -m`
    settings = settings_of(question.recorded, overrides, recipe)
    log = Path(mkdtemp(prefix="verl-agent-what-if-")) / "what_if.log"
    with ExitStack() as cleanup:
        cleanup.callback(shutil.rmtree, log.parent, ignore_errors=True)
        try:
            with redirect_output(log) as console:
                show = partial(console.print, markup=False, highlight=False, soft_wrap=True)
                return answer_question(question, settings, show)
        except (RuntimeError, ValueError, OSError):  # raised by vLLM for a model or machine that it cannot serve
            cleanup.pop_all()
            print_line(f"The engine failed. Errors in {log}:\n{errors_in(log)}")
            raise
