"""Sums of the index by step, group and task, so that a page of a large run does not read every episode.

Whatever changes an episode calls `update_sums` for its purpose and step, which are then computed anew.
"""

import json
import sqlite3
from collections.abc import Collection, Iterable, Sequence
from typing import Any, cast

from verl_agent.trace.behaviors import BEHAVIORS, first_divergence
from verl_agent.types import StopReason
from verl_agent.viewer.conditions import EQUAL, GROUP, LAST_ATTEMPT, SPREAD, VALID

Step = tuple[str, int]
"""Purpose and training step of an episode."""

_COUNTED = f"{{where}} AND {LAST_ATTEMPT}"
SUMS = {
    "step_sums": f"""SELECT purpose, step, stop, operated, count(*) AS episodes, sum(reward) AS reward,
        sum(success) AS success, sum(turns) AS turns, max(max_turns) AS max_turns, sum(tokens) AS tokens,
        sum(seconds) AS seconds, min(started_at) AS started_at, sum(success AND oracle_turns IS NOT NULL) AS measured,
        sum(success AND turns < coalesce(oracle_turns, 0)) AS short,
        {", ".join(f'sum("{one.name}") AS "{one.name}"' for one in BEHAVIORS)}
        FROM episodes WHERE {_COUNTED} GROUP BY purpose, step, stop, operated""",
    "groups": f"""SELECT {GROUP}, category, task, count(*) AS episodes, avg(success) AS success, avg(reward) AS reward,
        avg(turns) AS turns, {SPREAD} AS spread, {EQUAL} AS uniform, divergence(actions) AS divergence
        FROM episodes WHERE {_COUNTED} AND {VALID} GROUP BY {GROUP} HAVING count(*) > 1""",
    "task_sums": f"""SELECT env, task, purpose, step, max_turns, max(category) AS category, count(*) AS episodes,
        sum(success) AS solved, sum(turns) AS turns, sum(stop = '{StopReason.TURN_LIMIT}' AND NOT success) AS cut,
        min(oracle_turns) AS oracle_turns, min(CASE WHEN success THEN turns END) AS shortest, sum(reward) AS reward,
        min(reward) AS lowest, max(reward) AS highest, min(CASE WHEN success THEN reward END) AS enough
        FROM episodes WHERE {_COUNTED} AND {VALID} GROUP BY env, task, purpose, step, max_turns""",
    "copies": f"""SELECT purpose, step, max(CASE WHEN tasks > 1 THEN episodes ELSE 0 END) * 1.0 / sum(episodes) AS share
        FROM (SELECT purpose, step, count(*) AS episodes, count(DISTINCT task) AS tasks
            FROM episodes WHERE {_COUNTED} AND {VALID} GROUP BY purpose, step, actions) GROUP BY purpose, step""",
}
"""Queries for the tables of sums over the last attempts, by the name of the table; `{where}` stands for a condition.

`groups` has the groups of two or more valid episodes; `divergence` is the number, from 1, of the first turn in which
their actions differ. In `task_sums`, `shortest` is the number of turns of the shortest solved episode, `enough` the
lowest return of one. `copies` has the largest share of the valid episodes of a step that have the same actions, if
several tasks have them."""

SUMMARY_TABLES = (
    *(f"CREATE TABLE {name} AS {query.format(where='0')}" for name, query in SUMS.items()),
    *(f"CREATE INDEX {name}_by_step ON {name} (purpose, step)" for name in ("step_sums", "groups", "task_sums")),
)
"""Statements that create the tables of sums."""

_LATER = f"""EXISTS (SELECT 1 FROM episodes AS later
    WHERE later."group" = episodes."group" AND later.step = episodes.step AND later.sample = episodes.sample
    AND (later.started_at, later.attempt, later.id) > (episodes.started_at, episodes.attempt, episodes.id)
    AND (later.attempt > episodes.attempt
        OR episodes.stop IN ('{StopReason.ENV_ERROR}', '{StopReason.REQUEST_REFUSED}')
        OR (later.started_at, later.attempt) = (episodes.started_at, episodes.attempt))
    AND later.task = episodes.task AND later.file = episodes.file AND later.purpose = episodes.purpose
    AND later.env = episodes.env AND later.model = episodes.model)"""
"""Condition in SQL that a later attempt followed. One process plays all attempts, so they stand in one file.
A resumed evaluation may play an episode with an environment error or a refused request again, and counts its attempts
from 1. Of lines that state the same attempt, such as those of a file that was written twice, the last one counts."""

_ABANDONED = '"group" IN (SELECT value FROM json_each(:groups))'
_PLAYED_AGAIN = f"started_at < :start OR {_ABANDONED}"
"""Condition in SQL that an episode was played again: it began before a start, or is of an abandoned group."""


class _Divergence:
    """Aggregate in SQL: first turn in which lists of actions differ, from 1; NULL if they are equal."""

    def __init__(self) -> None:
        self._actions: set[str] = set()

    def step(self, actions: str) -> None:
        self._actions.add(actions)

    def finalize(self) -> int | None:
        turn = first_divergence([json.loads(actions) for actions in self._actions])
        return None if turn is None else turn + 1


RULES = (_LATER, _PLAYED_AGAIN)
"""Conditions from which marks of episodes follow."""


def add_functions(db: sqlite3.Connection) -> None:
    """Add the functions in SQL that `update_sums` needs to a connection."""
    db.create_aggregate("divergence", 1, cast(Any, _Divergence))  # the stub of SQLite takes numbers only


def update_sums(db: sqlite3.Connection, steps: Iterable[Step]) -> None:
    """Mark the attempts that a later one followed, and compute the sums of some steps anew; in a transaction."""
    where = "purpose = ? AND step = ?"
    for step in steps:
        db.execute(f"UPDATE episodes SET retried = {_LATER} WHERE {where} AND retried != {_LATER}", step)
        for name, query in SUMS.items():
            db.execute(f"DELETE FROM {name} WHERE {where}", step)
            db.execute(f"INSERT INTO {name} {query.format(where=where)}", step)


def drop_file(db: sqlite3.Connection, file: int) -> None:
    """Drop the rows of a file of records; in a transaction."""
    steps = db.execute("SELECT DISTINCT purpose, step FROM episodes WHERE file = ?", (file,)).fetchall()
    for table in ("heads", "parts"):
        db.execute(f"DELETE FROM {table} WHERE episode IN (SELECT id FROM episodes WHERE file = ?)", (file,))
    for table, column in (("episodes", "file"), ("bad_lines", "file"), ("files", "id")):
        db.execute(f"DELETE FROM {table} WHERE {column} = ?", (file,))
    update_sums(db, [(row["purpose"], row["step"]) for row in steps])


def mark_replaced(db: sqlite3.Connection, starts: Sequence[str], abandoned: Collection[str]) -> bool:
    """Mark the episodes of steps and groups that a later start of the run played again; in a transaction.

    Args:
        starts: times at which the run was started, in order.
        abandoned: groups that were played again under other names, in any step.

    Returns:
        True if any mark changed.
    """
    steps = db.execute(
        "SELECT purpose, step, min(started_at) AS first, max(started_at) AS last, max(replaced) AS marked "
        "FROM episodes GROUP BY purpose, step"
    ).fetchall()
    groups = json.dumps(sorted(abandoned))
    found = db.execute(f"SELECT DISTINCT purpose, step FROM episodes WHERE {_ABANDONED}", {"groups": groups})
    with_abandoned = {(row["purpose"], row["step"]) for row in found}
    changed = []
    for row in steps:
        step = (row["purpose"], row["step"])
        latest = max((start for start in starts if start <= row["last"]), default="")
        if row["first"] < latest or row["marked"] or step in with_abandoned:
            cursor = db.execute(
                f"UPDATE episodes SET replaced = {_PLAYED_AGAIN} "
                f"WHERE purpose = :purpose AND step = :step AND replaced != ({_PLAYED_AGAIN})",
                {"start": latest, "groups": groups, "purpose": row["purpose"], "step": row["step"]},
            )
            if cursor.rowcount:
                changed.append(step)
    update_sums(db, changed)
    return bool(changed)
