"""Episodes that a later start of a run played again, and the file of groups that are played under other names.

Abandoned groups were in flight at the checkpoint, or were dispatched after it by a start that was killed.

Episodes of such a group that had ended before the run did are recorded like any other; the file tells them apart.
"""

import re
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from verl_agent.json_lines import remove_unfinished_line
from verl_agent.trace.record import EpisodeRecord

ABANDONED_FILE = "abandoned_groups.txt"
"""File in the folder of a training run, one name of a group a line."""
_START = re.compile(r"(\d{4})(\d\d)(\d\d)T(\d\d)(\d\d)(\d\d)")
"""Name of a metrics file; see `verl_agent.runs.folder.RunFolder.metrics`."""
_FIELD = rb'"\w+": (?:"(?:[^"\\]|\\.)*"|[-\d.]+), '
_GROUP = re.compile(rb"\{(?:" + _FIELD + rb')*?"group": "((\d{7})-[^"]*)"')
"""Name of a group, which begins with the step that dispatched it, after the first fields of a record: data of tasks may
have such a field too."""


def add_abandoned(run: Path, groups: Sequence[str]) -> None:
    """Append groups to the file of a run; a group may be added again.

    Args:
        run: folder of the run; created if missing.
    """
    path = run / ABANDONED_FILE
    run.mkdir(parents=True, exist_ok=True)
    remove_unfinished_line(path)
    with path.open("a", encoding="utf-8") as file:
        file.writelines(f"{group}\n" for group in groups)


def dispatched_after(records: Path, step: int) -> list[str]:
    """Return the recorded groups of training that a later step than `step` dispatched, sorted.

    The lines are searched and not parsed, so that a damaged one keeps no run from resuming. Damaged bytes of a name are
    replaced.

    Args:
        records: folder of episode records; may be missing.
        step: training step, >= 0.
    """
    groups = set[str]()
    for path in records.rglob("*.jsonl"):
        with path.open("rb") as file:
            found = filter(None, map(_GROUP.match, file))
            groups |= {one[1].decode(errors="replace") for one in found if int(one[2]) > step}
    return sorted(groups)


def read_abandoned(run: Path) -> frozenset[str]:
    """Return the abandoned groups of a run; empty if it has no such file."""
    try:
        return frozenset((run / ABANDONED_FILE).read_text(encoding="utf-8", errors="replace").split())
    except FileNotFoundError:
        return frozenset()


def start_times(metrics: Iterable[Path]) -> list[str]:
    """Return the times at which a run was started or resumed, ISO 8601 in UTC, in the order of its metrics files."""
    found = (_START.fullmatch(file.stem) for file in metrics)
    return ["{}-{}-{}T{}:{}:{}".format(*start.groups()) for start in found if start is not None]


def without_replaced(
    records: Iterable[EpisodeRecord], starts: Sequence[str], abandoned: Collection[str]
) -> list[EpisodeRecord]:
    """Return the records of a run without the episodes of steps and groups that a later start played again.

    Args:
        starts: times at which the run was started; see `start_times`.
        abandoned: groups that were played again under other names, in any step.
    """
    played = list(records)
    last: dict[tuple[str, int], str] = {}
    for one in played:
        at = one["purpose"], one["step"]
        last[at] = max(last.get(at, ""), one["started_at"])
    latest = {at: max((start for start in starts if start <= time), default="") for at, time in last.items()}
    return [
        one
        for one in played
        if one["started_at"] >= latest[one["purpose"], one["step"]] and one["group"] not in abandoned
    ]
