"""Comparison of two sources, steps or evaluations, paired by task."""

from collections.abc import Sequence
from dataclasses import dataclass

from verl_agent.results.statistics import Estimate, mean_return, paired_difference, wilson_interval
from verl_agent.trace.behaviors import BEHAVIORS
from verl_agent.viewer.conditions import LAST_ATTEMPT, VALID
from verl_agent.viewer.filters import Filter
from verl_agent.viewer.index import RecordIndex
from verl_agent.viewer.queries import Row

SOLVED = 0.5
"""Share of solved episodes from which a task counts as solved."""


@dataclass(frozen=True, slots=True)
class TaskPair:
    """One task in two sources.

    Attributes:
        success: share of solved episodes in the first and in the second source.
        reward: mean return in the first and in the second source.
        episodes: number of episodes in the first and in the second source.
        behaviors: turns that show a behavior over all turns, in the first and in the second source, by its name.
    """

    env: str
    task: str
    category: str
    success: tuple[float, float]
    reward: tuple[float, float]
    episodes: tuple[int, int]
    behaviors: dict[str, tuple[float, float]]

    @property
    def change(self) -> str:
        """`gained` if the second source solves the task and the first does not, `lost`, `solved` or `failed`."""
        before, after = (share >= SOLVED for share in self.success)
        return "solved" if before and after else "gained" if after else "lost" if before else "failed"


@dataclass(frozen=True, slots=True)
class PairedChanges:
    """Changes from the first to the second source, with intervals over tasks.

    Attributes:
        success: difference of the share of solved episodes, second minus first.
        returns: difference of the mean return, second minus first.
        gained: share of the tasks that the first does not solve and the second does; None if the first solves all.
        lost: share of the tasks that the first solves and the second does not; None if the first solves none.
        behaviors: difference of the share of turns that show a behavior, by its name, without those that never occur.
    """

    success: Estimate
    returns: Estimate
    gained: Estimate | None
    lost: Estimate | None
    behaviors: dict[str, Estimate]


def an_evaluation(index: RecordIndex, first: bool = False) -> dict[str, str]:
    """Return the filter of the last or the first step that was validated or evaluated; empty if no step was."""
    order = "ASC" if first else "DESC"
    row = index.db.execute(
        f"SELECT purpose, step FROM episodes WHERE purpose IN ('validation', 'evaluation') AND {VALID} "
        f"ORDER BY step {order}, started_at {order} LIMIT 1"
    ).fetchone()
    return {} if row is None else {"step": str(row["step"]), "purpose": row["purpose"]}


def pair_tasks(first: RecordIndex, second: RecordIndex, chosen: tuple[Filter, Filter]) -> list[TaskPair]:
    """Return the tasks that both sources hold, with their means in each; episodes that are not valid are left out.

    Args:
        chosen: filter of the first and of the second source, for example one step each.
    """
    one, two = _by_task(first, chosen[0]), _by_task(second, chosen[1])
    pairs = []
    for env, task in sorted(one.keys() & two.keys()):
        before, after = one[env, task], two[env, task]
        pairs.append(
            TaskPair(
                env,
                task,
                before["category"],
                (before["success"], after["success"]),
                (before["reward"], after["reward"]),
                (before["episodes"], after["episodes"]),
                {behavior.name: (before[behavior.name], after[behavior.name]) for behavior in BEHAVIORS},
            )
        )
    return pairs


def compare_pairs(pairs: Sequence[TaskPair]) -> PairedChanges:
    """Return the changes over all pairs."""
    changes = [pair.change for pair in pairs]
    failed, solved = changes.count("failed") + changes.count("gained"), changes.count("solved") + changes.count("lost")
    occurring = [name for name in pairs[0].behaviors if any(any(pair.behaviors[name]) for pair in pairs)]
    return PairedChanges(
        success=_difference([pair.success for pair in pairs]),
        returns=mean_return(
            {str(number): [pair.reward[1]] for number, pair in enumerate(pairs)},
            baseline_by_task={str(number): [pair.reward[0]] for number, pair in enumerate(pairs)},
        ),
        gained=wilson_interval(changes.count("gained"), failed) if failed else None,
        lost=wilson_interval(changes.count("lost"), solved) if solved else None,
        behaviors={name: _difference([pair.behaviors[name] for pair in pairs]) for name in occurring},
    )


def _difference(values: Sequence[tuple[float, float]]) -> Estimate:
    """Return the second minus the first, paired by position; values are shares, 0 to 1."""
    return paired_difference(
        {str(number): [after] for number, (_, after) in enumerate(values)},
        {str(number): [before] for number, (before, _) in enumerate(values)},
    )


def _by_task(index: RecordIndex, chosen: Filter) -> dict[tuple[str, str], Row]:
    where, bound = chosen.where()
    behaviors = ", ".join(
        f'1.0 * sum("{behavior.name}") / max(sum(turns), 1) AS "{behavior.name}"' for behavior in BEHAVIORS
    )
    rows = index.db.execute(
        f"""SELECT env, task, max(category) AS category, avg(success) AS success, avg(reward) AS reward,
            count(*) AS episodes, {behaviors} FROM episodes
        WHERE {where} AND {VALID} AND {LAST_ATTEMPT} GROUP BY env, task""",
        bound,
    )
    return {(row["env"], row["task"]): dict(row) for row in rows}
