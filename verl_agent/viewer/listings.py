"""Lists of groups and of tasks: what they teach, and when tasks were solved and forgotten."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from verl_agent.viewer.conditions import GROUP, GROUP_FIELDS, LAST_ATTEMPT, VALID
from verl_agent.viewer.filters import Filter
from verl_agent.viewer.index import RecordIndex
from verl_agent.viewer.queries import Row

_OF_TASK = ("purpose", "step", "env", "category", "task", "max_turns")
_OF_GROUP = (*GROUP_FIELDS, "category", "task")
"""Parameters of a filter that are the same for all episodes of a task at a step, and of a group."""


@dataclass(slots=True)
class TaskSummary:
    """One task over training.

    Attributes:
        episodes: number of valid episodes.
        success: share of solved episodes at each step, in order of steps.
    """

    env: str
    task: str
    category: str
    episodes: int = 0
    success: dict[int, float] = field(default_factory=dict)

    @property
    def first_solved(self) -> int | None:
        """First step with a solved episode."""
        return next((step for step, share in self.success.items() if share > 0), None)

    @property
    def forgotten(self) -> int | None:
        """Last step without a solved episode after the first solved one."""
        first = self.first_solved
        steps = [step for step, share in self.success.items() if share == 0 and first is not None and step > first]
        return steps[-1] if steps else None


def list_groups(index: RecordIndex, chosen: Filter, limit: int, offset: int = 0) -> list[Row]:
    """Return the groups that have an episode of the filter and two or more valid ones, in order of steps.

    Means and `spread`, the range of the returns, are over all valid episodes of a group. `uniform` is 1 if its returns
    are equal; `divergence` is the number, from 1, of the first turn in which its actions differ.
    """
    where, bound = _groups_of(chosen)
    rows = index.db.execute(
        f"SELECT * FROM groups WHERE {where} ORDER BY step, purpose, env, task LIMIT ? OFFSET ?",
        (*bound, limit, offset),
    )
    return [dict(row) for row in rows]


def summarize_tasks(index: RecordIndex, chosen: Filter) -> list[TaskSummary]:
    """Return the tasks of the episodes that a filter selects, by environment and task."""
    where, bound = chosen.where()
    source = f"""SELECT env, task, category, step, count(*) AS episodes, sum(success) AS solved FROM episodes
        WHERE {where} AND {VALID} AND {LAST_ATTEMPT} GROUP BY env, task, step"""
    if chosen.values.keys() <= set(_OF_TASK):
        source = f"SELECT * FROM task_sums WHERE {where}"
    rows = index.db.execute(
        f"""SELECT env, task, max(category) AS category, step, sum(episodes) AS episodes,
            1.0 * sum(solved) / sum(episodes) AS success FROM ({source})
        GROUP BY env, task, step ORDER BY env, task, step""",
        bound,
    )
    found: dict[tuple[str, str], TaskSummary] = {}
    for row in rows:
        summary = found.setdefault((row["env"], row["task"]), TaskSummary(row["env"], row["task"], row["category"]))
        summary.episodes += row["episodes"]
        summary.success[row["step"]] = row["success"]
    return list(found.values())


def learning_signal(group: Mapping[str, Any]) -> str:
    """Return `yes` if an update learns from a group, `no` if its returns are equal; "" for one not trained on."""
    return "" if group["purpose"] != "train" else "no" if group["uniform"] else "yes"


def count_groups(index: RecordIndex, chosen: Filter) -> tuple[int, int]:
    """Return the number of groups that `list_groups` finds, and of those whose returns are all equal."""
    where, bound = _groups_of(chosen)
    row = index.db.execute(
        f"SELECT count(*) AS groups, coalesce(sum(uniform), 0) AS uniform FROM groups WHERE {where}", bound
    ).fetchone()
    return int(row["groups"]), int(row["uniform"])


def _groups_of(chosen: Filter) -> tuple[str, list[Any]]:
    """Return the condition in SQL for the groups that have an episode of the filter."""
    where, bound = chosen.where()
    of_group = chosen.values.keys() <= set(_OF_GROUP)
    return (where if of_group else f"({GROUP}) IN (SELECT {GROUP} FROM episodes WHERE {where})"), bound
