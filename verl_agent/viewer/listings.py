"""Tables of groups and of tasks: what they teach, and when tasks were solved and forgotten."""

from collections.abc import Mapping
from typing import Any

from verl_agent.viewer.conditions import GROUP, GROUP_FIELDS
from verl_agent.viewer.filters import Filter
from verl_agent.viewer.index import RecordIndex
from verl_agent.viewer.queries import Row
from verl_agent.viewer.summaries import SUMS

_OF_TASK = ("purpose", "step", "env", "category", "task", "max_turns")
_OF_GROUP = (*GROUP_FIELDS, "category", "task")
"""Parameters of a filter that are the same for all episodes of a task at a step, and of a group."""
SHOWN_TASKS = {
    "all": "1",
    "never solved": "first_solved IS NULL",
    "solved": "first_solved IS NOT NULL",
    "forgotten": "forgotten IS NOT NULL",
}
"""Conditions in SQL on a task, by name."""


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


def count_groups(index: RecordIndex, chosen: Filter) -> tuple[int, int]:
    """Return the number of groups that `list_groups` finds, and of those whose returns are all equal."""
    where, bound = _groups_of(chosen)
    groups, uniform = index.db.execute(f"SELECT count(*), total(uniform) FROM groups WHERE {where}", bound).fetchone()
    return int(groups), int(uniform)


def learning_signal(group: Mapping[str, Any]) -> str:
    """Return `yes` if an update learns from a group, `no` if its returns are equal; "" for one not trained on."""
    return "" if group["purpose"] != "train" else "no" if group["uniform"] else "yes"


def _groups_of(chosen: Filter) -> tuple[str, list[Any]]:
    """Return the condition in SQL for the groups that have an episode of the filter."""
    where, bound = chosen.where()
    of_group = chosen.values.keys() <= set(_OF_GROUP)
    return (where if of_group else f"({GROUP}) IN (SELECT {GROUP} FROM episodes WHERE {where})"), bound


def list_tasks(index: RecordIndex, chosen: Filter, shown: str = "all", limit: int = -1, offset: int = 0) -> list[Row]:
    """Return the tasks of the valid episodes that a filter selects, by environment and task.

    `first_solved` is the first step with a solved episode, `forgotten` the last step without one after that, and
    `curve` has the share of solved episodes at each step, separated by commas.

    Args:
        shown: key of `SHOWN_TASKS`.
        limit: most tasks; -1 for all.
    """
    tasks, bound = _tasks_of(chosen)
    rows = index.db.execute(
        f"SELECT * FROM ({tasks}) WHERE {SHOWN_TASKS[shown]} ORDER BY env, task LIMIT ? OFFSET ?",
        (*bound, limit, offset),
    )
    return [dict(row) for row in rows]


def count_tasks(index: RecordIndex, chosen: Filter) -> dict[str, int]:
    """Return the number of tasks of each key of `SHOWN_TASKS`."""
    tasks, bound = _tasks_of(chosen)
    sums = ", ".join(f"total({condition})" for condition in SHOWN_TASKS.values())
    return dict(
        zip(SHOWN_TASKS, map(int, index.db.execute(f"SELECT {sums} FROM ({tasks})", bound).fetchone()), strict=True)
    )


def _tasks_of(chosen: Filter) -> tuple[str, list[Any]]:
    """Return the query for the tasks of a filter, and its parameters."""
    where, bound = chosen.where()
    of_task = chosen.values.keys() <= set(_OF_TASK)
    source = f"SELECT * FROM task_sums WHERE {where}" if of_task else SUMS["task_sums"].format(where=where)
    by_step = f"""SELECT env, task, max(category) AS category, step, sum(episodes) AS episodes, sum(solved) AS solved
        FROM ({source}) GROUP BY env, task, step ORDER BY env, task, step"""
    by_task = f"""SELECT env, task, max(category) AS category, sum(episodes) AS episodes,
        min(CASE WHEN solved THEN step END) AS first_solved, max(CASE WHEN NOT solved THEN step END) AS last_failed,
        group_concat(1.0 * solved / episodes) AS curve FROM ({by_step}) GROUP BY env, task"""
    forgotten = "CASE WHEN last_failed > first_solved THEN last_failed END AS forgotten"
    return f"SELECT env, task, category, episodes, first_solved, {forgotten}, curve FROM ({by_task})", bound
