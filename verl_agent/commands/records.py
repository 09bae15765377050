"""Command `verl-agent records import`: trajectories of other programs as episode records."""

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from verl_agent.commands.terminal import fail, print_line
from verl_agent.errors import counted

app = typer.Typer(help="Episode records of other programs.", no_args_is_help=True)


@app.callback()
def records() -> None:
    """Episode records of other programs."""


@app.command("import")
def import_command(  # noqa: PLR0913 - one for each option
    file: Annotated[Path, typer.Argument(help="File to read; of atif and inspect also a folder.")],
    into: Annotated[Path, typer.Option(help="Folder to write episodes.jsonl into.")],
    env: Annotated[str, typer.Option(help="Name of the environment that the records get.")],
    kind: Annotated[
        str,
        typer.Option(
            "--as", help="messages (OpenAI's, JSON lines), atif (Harbor), verifiers (traces.jsonl) or inspect (logs)."
        ),
    ],
    calls: Annotated[str, typer.Option(help="Format of function calls: agent.options.calls.")] = "hermes",
    rewards: Annotated[str, typer.Option(help="Range of the returns. The highest one solves a task.")] = "0..1",
    reward: Annotated[
        float | None, typer.Option(help="Return of episodes whose source states none; unrated without.")
    ] = None,
    score: Annotated[str, typer.Option(help="Score or reward to read where the source has several.")] = "",
    thoughts: Annotated[bool, typer.Option("--thoughts", help="Write reasoning in <think> tags.")] = False,
) -> None:
    """Import trajectories for sft, dpo, view and failures. What a record cannot hold is refused or counted by name."""
    from verl_agent.evaluation.imports.conversation import ImportSettings
    from verl_agent.evaluation.imports.job import REFUSED, import_records

    low, _, high = rewards.partition("..")
    try:
        lowest, highest = float(low), float(high)
    except ValueError:
        fail(f"--rewards {rewards} is not allowed. Allowed: LOW..HIGH, such as 0..1.")
    found = import_records(file, kind, into, ImportSettings(env, calls, lowest, highest, reward, score, thoughts))
    print_line(f"Wrote {counted(found.episodes, 'episode')} to {into}.")
    if stated := found.unrated - found.undecided:
        print_line(f"Without a reward: {stated}. They are shown, and not trained on; --reward gives them one.")
    if found.undecided:
        names = " | ".join(sorted(found.choices))
        print_line(f"With several scores, and so unrated: {found.undecided}. Choose one: --score {names}.")
    if found.left_out:
        print_line(f"Left out, since a record has no place for them: {_listed(found.left_out)}.")
    if found.refused:
        print_line(f"Refused: {_listed(found.refused)}. Their lines: {into / REFUSED}.")


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{name} ({count})" for name, count in counts.most_common() if count)
