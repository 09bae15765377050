"""Queries on the index that the pages show: episodes, steps, groups, tasks over training, paired runs."""

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from verl_agent.trace.behaviors import BEHAVIORS, first_divergence
from verl_agent.trace.returns import TOLERANCE, is_uniform
from verl_agent.types import StopReason
from verl_agent.viewer.filters import Filter
from verl_agent.viewer.index import RecordIndex

Row = dict[str, Any]
"""Columns of an episode by name, `id` included; see `verl_agent.viewer.tables.COLUMNS`."""

LAST_ATTEMPT = """NOT episodes.replaced AND NOT EXISTS (SELECT 1 FROM episodes AS later
    WHERE later."group" = episodes."group" AND later.step = episodes.step AND later.sample = episodes.sample
    AND later.attempt > episodes.attempt AND later.file = episodes.file AND later.purpose = episodes.purpose
    AND later.env = episodes.env AND later.model = episodes.model)"""
"""Condition in SQL that an episode is the last attempt of its sample, and its step was not played again after a resume.
One process plays all attempts, so they stand in one file."""
GROUP_FIELDS = ("purpose", "step", "group", "env", "model")
"""Columns that identify a group."""
GROUP = ", ".join(f'"{name}"' for name in GROUP_FIELDS)
_INVALID = tuple(reason for reason in StopReason if not reason.valid)
VALID = f"stop NOT IN ({', '.join(map(repr, map(str, _INVALID)))})"
"""Condition in SQL that an episode measures the policy."""
_RETURN = "coalesce(shaped_return, reward)"
SPREAD = f"max({_RETURN}) - min({_RETURN})"
"""Highest minus lowest return that the update uses, of a group in SQL."""
EQUAL = f"{SPREAD} <= {TOLERANCE} * max(1.0, abs(max({_RETURN})), abs(min({_RETURN})))"
"""`verl_agent.trace.returns.is_uniform` of a group in SQL."""

NEEDS = """SELECT env, task, coalesce(min(oracle_turns), min(CASE WHEN success THEN turns END)) AS need
    FROM episodes GROUP BY env, task"""
"""Query in SQL for the turns that each task needs: of the oracle, or of the shortest solved episode."""


@dataclass(frozen=True, slots=True)
class StepSummary:
    """Means over the episodes of one purpose and step.

    Attributes:
        step: training step.
        purpose: purpose of the episodes.
        episodes: number of valid episodes; the means are over them.
        env_errors: number of episodes that ended with an environment error.
        reward: mean return.
        success: share of solved episodes.
        turns: mean number of turns.
        max_turns: largest turn limit.
        tokens: sum of generated tokens.
        seconds: mean duration in seconds.
        started_at: start of the first episode, ISO 8601.
        stops: share of episodes by stop reason.
        behaviors: turns that show a behavior over all turns, by its name.
    """

    step: int
    purpose: str
    episodes: int
    env_errors: int
    reward: float
    success: float
    turns: float
    max_turns: int
    tokens: int
    seconds: float
    started_at: str
    stops: dict[str, float]
    behaviors: dict[str, float]


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """Episodes of one task that are compared with each other.

    Attributes:
        episodes: the episodes, by sample.
        advantages: return that the update uses, minus the mean of the group; 0 for an episode that is not valid.
        divergence: first turn in which their actions differ, from 0; None if all actions are equal.
        uniform: True if all returns are equal, so that a group estimator learns nothing from it.
    """

    episodes: list[Row]
    advantages: list[float]
    divergence: int | None
    uniform: bool


@dataclass(frozen=True, slots=True)
class TaskStep:
    """Episodes of one task at one step.

    Attributes:
        step: training step.
        purpose: purpose of the episodes.
        episodes: number of episodes.
        success: share of solved episodes.
        reward: mean return.
        ids: ids of the episodes.
    """

    step: int
    purpose: str
    episodes: int
    success: float
    reward: float
    ids: list[int]


def find_episodes(index: RecordIndex, chosen: Filter, limit: int = 200, offset: int = 0) -> list[Row]:
    """Return the columns of the episodes that a filter selects, in its order."""
    where, bound = chosen.where()
    rows = index.db.execute(
        f"SELECT * FROM episodes WHERE {where} ORDER BY {chosen.order()} LIMIT ? OFFSET ?", [*bound, limit, offset]
    )
    return [dict(row) for row in rows]


def count_episodes(index: RecordIndex, chosen: Filter) -> int:
    """Return the number of episodes that a filter selects."""
    where, bound = chosen.where()
    return int(index.db.execute(f"SELECT count(*) FROM episodes WHERE {where}", bound).fetchone()[0])


def find_episode(index: RecordIndex, episode: int) -> Row | None:
    """Return the columns of one episode; None if the index does not have it."""
    row = index.db.execute("SELECT * FROM episodes WHERE id = ?", (episode,)).fetchone()
    return dict(row) if row is not None else None


def find_ids(index: RecordIndex, chosen: Filter, limit: int | None = None) -> list[int]:
    """Return the ids of the episodes that a filter selects, in its order; all unless a limit is given."""
    where, bound = chosen.where()
    rows = index.db.execute(
        f"SELECT id FROM episodes WHERE {where} ORDER BY {chosen.order()} LIMIT ?",
        [*bound, -1 if limit is None else limit],
    )
    return [row["id"] for row in rows]


def find_neighbors(index: RecordIndex, episode: int, chosen: Filter) -> tuple[int | None, int | None]:
    """Return the ids before and after an episode in the order of a filter; None at an end."""
    where, bound = chosen.where()
    order = chosen.order()
    row = index.db.execute(
        f"""SELECT before, after FROM (SELECT id, lag(id) OVER (ORDER BY {order}) AS before,
            lead(id) OVER (ORDER BY {order}) AS after FROM episodes WHERE {where}) WHERE id = ?""",
        (*bound, episode),
    ).fetchone()
    return (row["before"], row["after"]) if row is not None else (None, None)


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
    behaviors = ", ".join(f'sum("{behavior.name}") AS "{behavior.name}"' for behavior in BEHAVIORS)
    rows = index.db.execute(
        f"""SELECT purpose, step, stop, count(*) AS episodes, sum(reward) AS reward, sum(success) AS success,
            sum(turns) AS turns, max(max_turns) AS max_turns, sum(tokens) AS tokens, sum(seconds) AS seconds,
            min(started_at) AS started_at, {behaviors}
        FROM episodes WHERE {where} AND {LAST_ATTEMPT} GROUP BY purpose, step, stop ORDER BY step, purpose""",
        bound,
    )
    parts: dict[tuple[int, str], list[Row]] = defaultdict(list)
    for row in rows:
        parts[row["step"], row["purpose"]].append(dict(row))
    return [_step_summary(step, purpose, rows_of_step) for (step, purpose), rows_of_step in parts.items()]


def _step_summary(step: int, purpose: str, by_stop: Sequence[Row]) -> StepSummary:
    every = sum(row["episodes"] for row in by_stop)
    valid = [row for row in by_stop if row["stop"] not in _INVALID]
    count, turns = sum(row["episodes"] for row in valid), sum(row["turns"] for row in valid)

    def mean(name: str) -> float:
        return sum(row[name] for row in valid) / count if count else float("nan")

    return StepSummary(
        step=step,
        purpose=purpose,
        episodes=count,
        env_errors=sum(row["episodes"] for row in by_stop if row["stop"] == StopReason.ENV_ERROR),
        reward=mean("reward"),
        success=mean("success"),
        turns=mean("turns"),
        max_turns=max(row["max_turns"] for row in by_stop),
        tokens=sum(row["tokens"] for row in valid),
        seconds=mean("seconds"),
        started_at=min(row["started_at"] for row in by_stop),
        stops={row["stop"]: row["episodes"] / every for row in by_stop},
        behaviors={
            behavior.name: sum(row[behavior.name] for row in valid) / turns if turns else 0.0 for behavior in BEHAVIORS
        },
    )


def find_group(
    index: RecordIndex, group: str, step: int, purpose: str, env: str | None = None, model: str | None = None
) -> GroupSummary:
    """Return the last attempts of a group's episodes at one step.

    Args:
        index: index of the records.
        group: name of the group; evaluations name it like its task, so several models may have it.
        step: training step.
        purpose: purpose of the episodes.
        env: name of the environment; None for that of the first episode.
        model: name of the policy; None for that of the first episode.
    """
    rows = index.db.execute(
        f"""SELECT * FROM episodes WHERE "group" = ? AND step = ? AND purpose = ? AND env = coalesce(?, env)
            AND model = coalesce(?, model) AND {LAST_ATTEMPT} ORDER BY sample, id""",
        (group, step, purpose, env, model),
    ).fetchall()
    rows = [row for row in rows if (row["env"], row["model"]) == (rows[0]["env"], rows[0]["model"])]
    episodes = [dict(row) for row in rows]
    valid = [row for row in episodes if row["stop"] not in _INVALID]
    returns = {row["id"]: row["reward"] if row["shaped_return"] is None else row["shaped_return"] for row in valid}
    mean = sum(returns.values()) / len(returns) if returns else 0.0
    return GroupSummary(
        episodes=episodes,
        advantages=[returns.get(row["id"], mean) - mean for row in episodes],
        divergence=first_divergence([json.loads(row["actions"]) for row in episodes]),
        uniform=len(returns) > 1 and is_uniform(returns.values()),
    )


def needed_turns(index: RecordIndex) -> dict[int, int]:
    """Return the number of tasks by the turns that they need; tasks for which these are not known are left out.

    They are the turns of the oracle. Where they are not recorded, they are those of the shortest solved episode.
    """
    rows = index.db.execute(f"SELECT need, count(*) AS tasks FROM ({NEEDS}) WHERE need IS NOT NULL GROUP BY need")
    return {row["need"]: row["tasks"] for row in rows}


def uniform_groups(index: RecordIndex) -> dict[int, float]:
    """Return the share of training groups whose returns are all equal, by step."""
    rows = index.db.execute(
        f"""SELECT step, avg(uniform) AS uniform FROM (
            SELECT step, {EQUAL} AS uniform
            FROM episodes WHERE purpose = 'train' AND {VALID} AND {LAST_ATTEMPT}
            GROUP BY {GROUP} HAVING count(*) > 1) GROUP BY step"""
    )
    return {row["step"]: row["uniform"] for row in rows}


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
