"""Tables of the results of one turn, for a terminal."""

from collections.abc import Sequence
from itertools import pairwise

from rich.console import Group, RenderableType
from rich.table import Table

from verl_agent.envs.parsing import shorten
from verl_agent.evaluation.report import plain_table
from verl_agent.evaluation.what_if.results import Result
from verl_agent.evaluation.what_if.summary import (
    ActionEffect,
    ReplySummary,
    policy_name,
    summarize_continuations,
    summarize_replies,
)
from verl_agent.terminal import styled
from verl_agent.visible import one_line

SHOWN = 60
"""Characters of an action in a table."""


def result_tables(results: Sequence[Result], recorded: str | None) -> list[RenderableType]:
    """Return the tables of all results of one turn, each with its title and its notes.

    Args:
        recorded: action of the recorded turn.
    """
    replies = summarize_replies(results, recorded)
    tables = [
        *map(_replies_table, replies),
        *(_thought_line(*pair) for pair in pairwise(replies) if pair[1].difference is not None),
    ]
    effects = summarize_continuations(results, recorded)
    parts = dict.fromkeys((one.policy, one.max_turns) for one in effects)
    compared = [_effects_table([one for one in effects if (one.policy, one.max_turns) == part]) for part in parts]
    return [*tables, *compared]


def _replies_table(summary: ReplySummary) -> RenderableType:
    kind = "" if summary.with_thought else " without a thought"
    table = _table("replies", "share [95 %]")
    for share in summary.actions:
        name = styled(_action(share.action) + (" (recorded)" if share.recorded else ""))
        table.add_row(name, str(share.replies), styled(str(share.share)))
    return Group(styled((f"{summary.replies} replies{kind} of {policy_name(summary.policy)}", "bold")), table, "")


def _thought_line(ordinary: ReplySummary, without: ReplySummary) -> RenderableType:
    return styled(
        f"{policy_name(without.policy)}: share of actions other than the recorded one: {ordinary.changed} with the "
        f"thought, {without.changed} without it; difference {without.difference}\n"
    )


def _effects_table(effects: Sequence[ActionEffect]) -> RenderableType:
    table = _table("episodes", "success [95 %]", "return [95 %]", "difference [95 %]")
    for effect in effects:
        difference = "" if effect.difference is None else str(effect.difference)
        left_out = f" ({effect.env_errors} failed)" if effect.env_errors else ""
        name = styled(f"{_action(effect.action)} ({effect.source})")
        table.add_row(
            name, f"{effect.episodes}{left_out}", styled(str(effect.success)), str(effect.returns), difference
        )
    title = f"after the action, {policy_name(effects[0].policy)} plays on, up to turn {effects[0].max_turns}"
    return Group(styled((title, "bold")), table, "")


def _table(*headings: str) -> Table:
    table = plain_table()
    table.add_column("action", overflow="fold")
    for heading in headings:
        table.add_column(styled(heading), justify="right", no_wrap=True)
    return table


def _action(action: str | None) -> str:
    return "no action" if action is None else one_line(shorten(action, SHOWN))
