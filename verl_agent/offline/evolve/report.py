"""Show what each round of exploring and learning measured."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from verl_agent.evaluation.results import CategoryResult, Comparison


@dataclass(frozen=True, slots=True)
class RoundResult:
    """One validation of one round's policy.

    Attributes:
        round: from 0, the policy that learnt from the base set alone.
        env: name of the environment.
        result: over all its held-out tasks.
        gain: success less that of round 0, task by task; None in round 0.
    """

    round: int
    env: str
    result: CategoryResult
    gain: Comparison | None


def rounds_table(found: Sequence[RoundResult]) -> Table:
    """One row a round and environment."""
    table = Table(title="success on held-out tasks, by round", box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    table.title_justify = "left"
    table.add_column("round", no_wrap=True)
    table.add_column("environment", no_wrap=True)
    for heading in ("tasks", "played", "success [95 %]", "gain on round 0 [95 %]", "turns"):
        table.add_column(escape(heading), justify="right", no_wrap=True)
    for one in sorted(found, key=lambda one: (one.env, one.round)):
        result = one.result
        turns = "-" if result.turns_mean is None else f"{result.turns_mean:.1f}"
        cells = (str(result.tasks), str(result.episodes), escape(str(result.success or "-")))
        gain = escape(str(one.gain.difference)) if one.gain else ""
        table.add_row(str(one.round), escape(one.env), *cells, gain, turns)
    return table
