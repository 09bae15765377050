"""Queries on the index that the pages show: episodes, steps, groups, tasks over training, paired runs."""

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from verl_agent.results.findings_steps import StepSummary, summarize_step
from verl_agent.results.statistics import Estimate, clustered_wilson_interval, mean_over_tasks, mean_return
from verl_agent.returns import TOLERANCE
from verl_agent.trace import frame
from verl_agent.viewer.conditions import GROUP, GROUP_FIELDS, INVALID, LAST_ATTEMPT, NEEDS, VALID
from verl_agent.viewer.filters import Filter
from verl_agent.viewer.index import RecordIndex
from verl_agent.viewer.summaries import SUMS

Row = dict[str, Any]
"""Columns of an episode by name, `id` included; see `verl_agent.viewer.tables.COLUMNS`."""


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """Episodes of one task that are compared with each other.

    Attributes:
        episodes: the episodes, by sample.
        advantages: return that the update uses, minus the mean of the group; 0 for an episode that is not valid.
        divergence: first turn in which the actions of the valid ones differ, from 0; None if all are equal.
        uniform: True if all returns are equal, so that a group estimator learns nothing from it.
    """

    episodes: list[Row]
    advantages: list[float]
    divergence: int | None
    uniform: bool


@dataclass(frozen=True, slots=True)
class TaskStep:
    """Episodes of one task at one step."""

    step: int
    purpose: str
    episodes: int
    success: float
    reward: float
    ids: list[int]


_SHOWN = ", ".join(("id", "file", "length", "replaced", "retried", *(f'"{name}"' for name in frame.COLUMNS)))
"""Columns of an episode without its actions, of which a long one has megabytes."""


def find_episodes(index: RecordIndex, chosen: Filter, limit: int = 200, offset: int = 0) -> list[Row]:
    """Return the columns of the episodes that a filter selects, in its order."""
    where, bound = chosen.where()
    order = chosen.order()
    rows = index.db.execute(  # ids alone are sorted, which takes less memory and time than whole rows
        f"""SELECT {_SHOWN} FROM episodes
        WHERE id IN (SELECT id FROM episodes WHERE {where} ORDER BY {order} LIMIT ? OFFSET ?)
        ORDER BY {order}""",
        [*bound, limit, offset],
    )
    return [dict(row) for row in rows]


def count_episodes(index: RecordIndex, chosen: Filter, replaced: bool = True) -> int:
    """Return the number of episodes that a filter selects.

    Args:
        replaced: count also those of steps and groups that a resumed run played again.
    """
    where, bound = chosen.where()
    kept = "1" if replaced else "NOT replaced"
    return int(index.db.execute(f"SELECT count(*) FROM episodes WHERE {kept} AND {where}", bound).fetchone()[0])


def find_row(index: RecordIndex, episode: int) -> Row | None:
    """Return the columns of one episode; None if the index does not have it."""
    row = index.db.execute(f"SELECT {_SHOWN} FROM episodes WHERE id = ?", (episode,)).fetchone()
    return dict(row) if row is not None else None


def find_ids(index: RecordIndex, chosen: Filter, limit: int | None = None) -> list[int]:
    """Return the ids of the episodes that a filter selects, in its order; all unless a limit is given.

    Episodes of steps and groups that a resumed run played again are left out.
    """
    where, bound = chosen.where()
    rows = index.db.execute(
        f"SELECT id FROM episodes WHERE NOT replaced AND {where} ORDER BY {chosen.order()} LIMIT ?",
        [*bound, -1 if limit is None else limit],
    )
    return [row["id"] for row in rows]


def find_neighbors(index: RecordIndex, episode: int, chosen: Filter) -> tuple[int | None, int | None]:
    """Return the ids before and after an episode in the order of a filter; None at an end."""
    where, bound = chosen.where()
    columns, descending = chosen.order_by()
    names = ", ".join(columns)
    here = index.db.execute(f"SELECT {names} FROM episodes WHERE id = ? AND ({where})", (episode, *bound)).fetchone()
    if here is None:
        return None, None

    def next_one(backwards: bool) -> int | None:
        sign, order = ("<", ", ".join(f"{name} DESC" for name in columns)) if backwards else (">", names)
        row = index.db.execute(
            f"""SELECT id FROM episodes WHERE ({where}) AND ({names}) {sign} ({", ".join("?" * len(here))})
            ORDER BY {order} LIMIT 1""",
            (*bound, *here),
        ).fetchone()
        return None if row is None else int(row["id"])

    return next_one(not descending), next_one(descending)


def find_labels(index: RecordIndex) -> dict[str, int]:
    """Return the number of labelled episodes of each tag, by tag."""
    counts: dict[str, int] = defaultdict(int)
    for row in index.db.execute("SELECT tags FROM labels"):
        for tag in row["tags"].split():
            counts[tag] += 1
    return dict(sorted(counts.items()))


def summarize_steps(index: RecordIndex, chosen: Filter) -> list[StepSummary]:
    """Return the means of every purpose and step, over the last attempts that a filter selects, in order of steps."""
    where, bound = chosen.where()
    query = "SELECT * FROM step_sums" if where == "1" else SUMS["step_sums"].format(where=where)
    rows = index.db.execute(f"{query} ORDER BY step, purpose", bound)
    parts: dict[tuple[int, str], list[Row]] = defaultdict(list)
    for row in rows:
        parts[row["step"], row["purpose"]].append(dict(row))
    return [summarize_step(step, purpose, rows_of_step) for (step, purpose), rows_of_step in parts.items()]


def find_group(
    index: RecordIndex, group: str, step: int, purpose: str, env: str | None = None, model: str | None = None
) -> GroupSummary:
    """Return the last attempts of a group's episodes at one step.

    Args:
        group: name of the group; evaluations name it like its task, so several models may have it.
        env: name of the environment; None for that of the first episode.
        model: name of the policy; None for that of the first episode.
    """
    rows = index.db.execute(
        f"""SELECT * FROM episodes WHERE "group" = ? AND step = ? AND purpose = ? AND env = coalesce(?, env)
            AND model = coalesce(?, model) AND {LAST_ATTEMPT} ORDER BY sample, id""",
        (group, step, purpose, env, model),
    ).fetchall()
    episodes = [dict(row) for row in rows if (row["env"], row["model"]) == (rows[0]["env"], rows[0]["model"])]
    valid = [row for row in episodes if row["stop"] not in INVALID and not row["operated"]]
    returns = {row["id"]: row["reward"] if row["shaped_return"] is None else row["shaped_return"] for row in valid}
    mean = sum(returns.values()) / len(returns) if returns else 0.0
    judged = index.db.execute(
        f"SELECT uniform, divergence - 1 FROM groups WHERE ({GROUP}) = (?, ?, ?, ?, ?)",
        [episodes[0][name] for name in GROUP_FIELDS] if episodes else [None] * len(GROUP_FIELDS),
    ).fetchone()
    uniform, divergence = judged or (False, None)
    advantages = [returns.get(row["id"], mean) - mean for row in episodes]
    return GroupSummary(episodes, advantages, divergence, bool(uniform))


def needed_turns(index: RecordIndex) -> dict[int, int]:
    """Return the number of tasks by the turns that they need; tasks for which these are not known are left out.

    They are the turns of the oracle. Where they are not recorded, they are those of the shortest solved episode.
    """
    rows = index.db.execute(f"SELECT need, count(*) AS tasks FROM ({NEEDS}) WHERE need IS NOT NULL GROUP BY need")
    return {row["need"]: row["tasks"] for row in rows}


def success_rates(index: RecordIndex) -> dict[tuple[str, int], Estimate]:
    """Return the success rate of each purpose and step, with the interval over tasks that reports have."""
    solved = defaultdict[tuple[str, int], dict[str, list[float]]](dict)
    for purpose, step, task, won, episodes in index.db.execute(
        """SELECT purpose, step, env || ' ' || task, sum(solved), sum(episodes) FROM task_sums
        GROUP BY purpose, step, env, task"""
    ):
        solved[purpose, step][task] = [1.0] * won + [0.0] * (episodes - won)
    return {at: clustered_wilson_interval(by_task) for at, by_task in solved.items()}


def mean_returns(index: RecordIndex) -> dict[tuple[str, int], Estimate]:
    """Return the mean return of each purpose and step, with the interval over tasks that reports have.

    The return of a solved task is the lowest one of a solved episode of the index, or 1 without one.
    """
    enough = index.db.execute("SELECT coalesce(min(enough), 1.0) FROM task_sums").fetchone()[0]
    means = defaultdict[tuple[str, int], dict[str, list[float]]](dict)
    known = defaultdict[tuple[str, int], list[float]](lambda: [0.0, enough])
    graded = set[tuple[str, int]]()
    rates = defaultdict[tuple[str, int], dict[str, list[float]]](dict)
    for purpose, step, task, earned, lowest, highest, solved, episodes in index.db.execute(
        """SELECT purpose, step, env || ' ' || task, sum(reward), min(lowest), max(highest), sum(solved), sum(episodes)
        FROM task_sums GROUP BY purpose, step, env, task"""
    ):
        means[purpose, step][task] = [earned / episodes]
        known[purpose, step] += [lowest, highest]
        rates[purpose, step][task] = [enough] * solved + [0.0] * (episodes - solved)
        if lowest < 0 or abs(earned - solved * enough) > TOLERANCE:  # not all returns are 0 or that of a solved task
            graded.add((purpose, step))
    return {
        at: mean_over_tasks(by_task, least=min(known[at]), most=max(known[at]))
        if at in graded
        else mean_return(rates[at], enough)
        for at, by_task in means.items()
    }


def count_uniform_groups(index: RecordIndex) -> dict[int, tuple[int, int]]:
    """Return the number of training groups whose returns are all equal, and of all training groups, by step."""
    rows = index.db.execute(
        "SELECT step, sum(uniform) AS uniform, count(*) AS groups FROM groups WHERE purpose = 'train' GROUP BY step"
    )
    return {row["step"]: (row["uniform"], row["groups"]) for row in rows}


def mean_divergence(index: RecordIndex) -> dict[int, float]:
    """Return the mean first different turn, from 1, of the training groups, by step.

    Samples with the same actions part after their last turn: without them, a policy that becomes deterministic would
    seem to explore as before.
    """
    rows = index.db.execute(
        "SELECT step, avg(coalesce(divergence, turns + 1)) AS turn FROM groups WHERE purpose = 'train' GROUP BY step"
    )
    return {row["step"]: row["turn"] for row in rows}


def task_history(index: RecordIndex, env: str, task: str) -> list[TaskStep]:
    """Return the episodes of one task at each step, in order of steps; environment errors are left out."""
    rows = index.db.execute(
        f"""SELECT step, purpose, count(*) AS episodes, avg(success) AS success, avg(reward) AS reward,
            group_concat(id) AS ids FROM episodes
        WHERE env = ? AND task = ? AND {VALID} AND {LAST_ATTEMPT}
        GROUP BY step, purpose ORDER BY step, purpose""",
        (env, task),
    )
    return [
        TaskStep(
            step=row["step"],
            purpose=row["purpose"],
            episodes=row["episodes"],
            success=row["success"],
            reward=row["reward"],
            ids=[int(part) for part in row["ids"].split(",")],
        )
        for row in rows
    ]
