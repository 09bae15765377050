"""Turn limits of training: episodes cut by each, success by the turns that tasks need, and the mean limit by step."""

from collections import defaultdict
from dataclasses import dataclass, field

from verl_agent.viewer.conditions import NEEDS
from verl_agent.viewer.index import RecordIndex

EXACT = 8
"""Turns up to which tasks are counted by the exact number; longer ones are counted in ranges that double."""


@dataclass(slots=True)
class Stage:
    """Training episodes of one environment with one turn limit.

    Those of a growing horizon are a range of steps. Limits by task or group, and two entries of a mixture, have steps
    in common.

    Attributes:
        first: first training step with such an episode.
        last: last one.
        episodes: number of valid episodes.
        solved: number of them that solved their task.
        cut: number of them that the turn limit ended unsolved.
        by_need: episodes and solved episodes by the turns that their task needs; see `need_range`.
    """

    env: str
    max_turns: int
    first: int
    last: int
    episodes: int = 0
    solved: int = 0
    cut: int = 0
    turns: int = 0
    by_need: dict[str, tuple[int, int]] = field(default_factory=lambda: defaultdict(lambda: (0, 0)))


def need_range(turns: int | None) -> str:
    """Return the name of the range of turns that a task needs: `3`, `9-16`, or `never solved` for None."""
    if turns is None:
        return "never solved"
    if turns <= EXACT:
        return str(turns)
    low = EXACT
    while turns > 2 * low:
        low *= 2
    return f"{low + 1}-{2 * low}"


def find_stages(index: RecordIndex) -> list[Stage]:
    """Return the turn limits of the training episodes, by environment and first step.

    The turns that a task needs are those of the oracle. Where they are not recorded, they are those of the task's
    shortest solved episode in all of the source, of any purpose.
    """
    sums = "sum(episodes) AS episodes, sum(solved) AS solved"
    stages = {
        (row["env"], row["max_turns"]): Stage(**row)
        for row in index.db.execute(
            f"""SELECT env, max_turns, min(step) AS first, max(step) AS last, {sums}, sum(cut) AS cut,
                sum(turns) AS turns
            FROM task_sums WHERE purpose = 'train' GROUP BY env, max_turns ORDER BY env, first, max_turns"""
        )
    }
    for row in index.db.execute(
        f"""SELECT sums.env, max_turns, need, {sums} FROM task_sums AS sums
            LEFT JOIN ({NEEDS}) AS needs ON needs.env = sums.env AND needs.task = sums.task
        WHERE purpose = 'train' GROUP BY sums.env, max_turns, need"""
    ):
        by_need, need = stages[row["env"], row["max_turns"]].by_need, need_range(row["need"])
        episodes, solved = by_need[need]
        by_need[need] = (episodes + row["episodes"], solved + row["solved"])
    return list(stages.values())


def mean_limits(index: RecordIndex) -> dict[str, list[tuple[int, float]]]:
    """Return training steps and their mean turn limits, of environments whose limits differ within a step."""
    found: dict[str, list[tuple[int, float]]] = {}
    differ = set[str]()
    for row in index.db.execute(
        """SELECT env, step, sum(max_turns * episodes) * 1.0 / sum(episodes) AS mean, max(max_turns) AS most
        FROM task_sums WHERE purpose = 'train' GROUP BY env, step ORDER BY env, step"""
    ):
        found.setdefault(row["env"], []).append((row["step"], row["mean"]))
        differ |= {row["env"]} if row["mean"] < row["most"] else set()
    return {env: means for env, means in found.items() if env in differ}


def needs_of(stages: list[Stage]) -> list[str]:
    """Return the ranges of needed turns that occur, in ascending order, tasks that were never solved last."""
    names = {name for stage in stages for name in stage.by_need}
    return sorted(names, key=lambda name: int(name.split("-")[0]) if name[0].isdecimal() else 1 << 30)
