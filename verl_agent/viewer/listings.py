"""Lists of groups and of tasks: what they teach, and when tasks were solved and forgotten."""

from dataclasses import dataclass, field

from verl_agent.viewer.filters import Filter
from verl_agent.viewer.index import RecordIndex
from verl_agent.viewer.queries import GROUP, LAST_ATTEMPT, VALID, Row


@dataclass(slots=True)
class TaskSummary:
    """One task over training.

    Attributes:
        env: name of the environment.
        task: id of the task.
        category: category of the task.
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
    """Return groups of two or more valid episodes with the spread of their returns, in order of steps."""
    where, bound = chosen.where()
    rows = index.db.execute(
        f"""SELECT step, purpose, env, model, category, task, "group", count(*) AS episodes, avg(success) AS success,
            avg(reward) AS reward, avg(turns) AS turns,
            max(coalesce(shaped_return, reward)) - min(coalesce(shaped_return, reward)) AS spread
        FROM episodes WHERE {where} AND {VALID} AND {LAST_ATTEMPT}
        GROUP BY {GROUP} HAVING count(*) > 1 ORDER BY step, purpose, env, task LIMIT ? OFFSET ?""",
        (*bound, limit, offset),
    )
    return [dict(row) for row in rows]


def list_tasks(index: RecordIndex, chosen: Filter) -> list[TaskSummary]:
    """Return the tasks of the episodes that a filter selects, by environment and task."""
    where, bound = chosen.where()
    rows = index.db.execute(
        f"""SELECT env, task, category, step, count(*) AS episodes, avg(success) AS success FROM episodes
        WHERE {where} AND {VALID} AND {LAST_ATTEMPT} GROUP BY env, task, step ORDER BY env, task, step""",
        bound,
    )
    found: dict[tuple[str, str], TaskSummary] = {}
    for row in rows:
        summary = found.setdefault((row["env"], row["task"]), TaskSummary(row["env"], row["task"], row["category"]))
        summary.episodes += row["episodes"]
        summary.success[row["step"]] = row["success"]
    return list(found.values())


def count_groups(index: RecordIndex, chosen: Filter) -> tuple[int, int]:
    """Return the number of groups that `list_groups` finds, and of those whose returns are all equal."""
    where, bound = chosen.where()
    row = index.db.execute(
        f"""SELECT count(*) AS groups, coalesce(sum(spread <= 1e-6), 0) AS uniform FROM (
            SELECT max(coalesce(shaped_return, reward)) - min(coalesce(shaped_return, reward)) AS spread
            FROM episodes WHERE {where} AND {VALID} AND {LAST_ATTEMPT}
            GROUP BY {GROUP} HAVING count(*) > 1)""",
        bound,
    ).fetchone()
    return int(row["groups"]), int(row["uniform"])
