"""History of a run from its records: each is condensed once, also while the run appends to its files."""

import logging
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from verl_agent.errors import ConfigError
from verl_agent.results.findings_steps import SUMMED, RunHistory, first_line, summarize_step
from verl_agent.results.results import final_records
from verl_agent.returns import is_uniform
from verl_agent.trace.abandoned import without_replaced
from verl_agent.trace.frame import episode_row
from verl_agent.trace.metrics_log import MetricsLog
from verl_agent.trace.record import EpisodeRecord, parse_line, task_key
from verl_agent.trace.record_files import record_files
from verl_agent.trace.turn_record import turn_text
from verl_agent.types import StopReason

logger = logging.getLogger(__name__)

_HEAD = ("env", "env_label", "task", "purpose", "step", "group", "sample", "started_at", "attempt")
"""Fields of a record that tell its episode and its attempt."""
_ROW = ("step", "group", "stop", "operated", "max_turns", "started_at", "oracle_turns", "shaped_return", *SUMMED)
"""Columns of an episode that a history needs."""


@dataclass(frozen=True, slots=True)
class CondensedEpisode:
    """Part of a record that a history needs, without its texts.

    Attributes:
        head: fields of the record that tell its episode and its attempt.
        row: columns of the episode.
        needs: turns that the task needs, as far as this episode tells; None if it does not.
        actions: hash of the actions by turn.
        error: first line of its error.
    """

    head: EpisodeRecord
    row: Mapping[str, Any]
    needs: int | None
    actions: int
    error: str


def condense(record: EpisodeRecord) -> CondensedEpisode:
    """Return the part of a record that a history needs."""
    row = episode_row(record)
    return CondensedEpisode(
        cast(EpisodeRecord, {name: record[name] for name in _HEAD if name in record}),  # type: ignore[literal-required]
        {name: row[name] for name in _ROW},
        record.get("oracle_turns") or _own_turns(record),
        hash(tuple(map(turn_text, record["turns"]))),
        first_line(row["error"] or ""),
    )


def _own_turns(record: EpisodeRecord) -> int | None:
    """Return the turns of a solved episode; None if it was not solved, or not from the prompt on."""
    return len(record["turns"]) if record["success"] and not record.get("given_turns") else None


def condensed_history(
    episodes: Sequence[CondensedEpisode], log: MetricsLog, starts: Sequence[str] = (), abandoned: Collection[str] = ()
) -> RunHistory:
    """Return the history of condensed episodes.

    Args:
        starts: times at which the run was started; see `without_replaced`.
        abandoned: groups that were played again under other names.
    """
    by_head = {id(one.head): one for one in episodes}
    heads = final_records(without_replaced((one.head for one in episodes), starts, abandoned))
    sums = defaultdict[tuple[int, str], defaultdict[tuple[str, bool], list[Mapping[str, Any]]]](
        lambda: defaultdict(list)
    )
    groups = defaultdict[tuple[int, str], list[float]](list)
    needs = defaultdict[tuple[str, str], list[int]](list)
    actions = defaultdict[int, defaultdict[int, list[str]]](lambda: defaultdict(list))
    errors = Counter[str]()
    for head in heads:
        episode = by_head[id(head)]
        row, at = episode.row, (head["step"], head["purpose"])
        sums[at][row["stop"], row["operated"]].append(row)
        if episode.needs:
            needs[task_key(head)].append(episode.needs)
        if head["purpose"] != "train":
            continue
        if StopReason(row["stop"]).valid and not row["operated"]:
            returned = row["shaped_return"]
            groups[row["step"], row["group"]].append(row["reward"] if returned is None else returned)
            actions[row["step"]][episode.actions].append(head["task"])
        elif row["stop"] == StopReason.ENV_ERROR:
            errors[episode.error] += 1
    uniform = defaultdict[int, list[bool]](list)
    for (step, _), values in groups.items():
        if len(values) > 1:
            uniform[step].append(is_uniform(values))
    steps = sorted(sums)
    needed = Counter(min(turns) for turns in needs.values())
    return RunHistory(
        [summarize_step(*at, [_sum(rows) for rows in sums[at].values()]) for at in steps],
        {step: (sum(uniform[step]), len(uniform[step])) for step, purpose in steps if purpose == "train"},
        dict(needed),
        {step: _largest_copy(tasks.values()) for step, tasks in actions.items()},
        errors,
        log,
    )


@dataclass(slots=True)
class RecordFollower:
    """Reader of the records of a run that keeps what a history needs of each, and reads only what was appended.

    A record takes about 2 kB, whatever its texts. A line that is not a valid record is left out.

    Args:
        run: folder of the run.
    """

    run: Path
    _files: dict[Path, tuple[int, int, list[CondensedEpisode]]] = field(default_factory=dict)
    """Inode, position and episodes of each file."""

    def read(self) -> list[CondensedEpisode]:
        """Return the condensed episodes of all files, in order of the files."""
        self._files = {file: self._read_file(file) for file in record_files(self.run)}
        return [one for _, _, episodes in self._files.values() for one in episodes]

    def _read_file(self, path: Path) -> tuple[int, int, list[CondensedEpisode]]:
        inode, offset, episodes = self._files.get(path, (0, 0, []))
        status = path.stat()
        if inode != status.st_ino or status.st_size < offset:
            offset, episodes = 0, []
        with path.open("rb") as file:
            file.seek(offset)
            for raw in file:
                if not raw.endswith(b"\n"):
                    break
                try:
                    episodes.append(condense(parse_line(raw)))
                except (ValueError, RecursionError, ConfigError) as error:
                    logger.warning("%s: skipped a line at byte %d: %s", path, offset, error)
                offset += len(raw)
        return status.st_ino, offset, episodes


def _largest_copy(tasks: Iterable[Sequence[str]]) -> float:
    """Return the share of the largest part among parts of several tasks; 0 without one."""
    parts = list(tasks)
    return max((len(part) for part in parts if len(set(part)) > 1), default=0) / sum(map(len, parts))


def _sum(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the sums of the episodes of a step that ended with the same `stop` and are `operated` alike."""
    measured = [row for row in rows if row["success"] and row["oracle_turns"] is not None]
    return {
        "stop": rows[0]["stop"],
        "operated": rows[0]["operated"],
        "episodes": len(rows),
        "max_turns": max(row["max_turns"] for row in rows),
        "started_at": min(row["started_at"] for row in rows),
        "measured": len(measured),
        "short": sum(row["turns"] < row["oracle_turns"] for row in measured),
        **{name: sum(row[name] for row in rows) for name in SUMMED},
    }
