"""File of abandoned groups: those that a resumed run plays again under other names.

They were in flight at the checkpoint, or were dispatched after it by a start that was killed.

Episodes of such a group that had ended before the run did are recorded like any other; the file tells them apart.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from verl_agent.trace.record_files import remove_unfinished_line

ABANDONED_FILE = "abandoned_groups.txt"
"""File in the folder of a training run, one name of a group a line."""
_GROUP = re.compile(rb'"group": "((\d{7})-[^"]*)"')
"""Name of a group in a record, which begins with the step that dispatched it."""


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

    The lines are searched and not parsed, so that a damaged one keeps no run from resuming.

    Args:
        records: folder of episode records; may be missing.
        step: training step, >= 0.
    """
    groups = set[str]()
    for path in records.rglob("*.jsonl"):
        with path.open("rb") as file:
            found = (pair for line in file for pair in _GROUP.findall(line))
            groups |= {group.decode() for group, dispatched in found if int(dispatched) > step}
    return sorted(groups)


def read_abandoned(run: Path) -> frozenset[str]:
    """Return the abandoned groups of a run; empty if it has no such file."""
    try:
        return frozenset((run / ABANDONED_FILE).read_text(encoding="utf-8").split())
    except FileNotFoundError:
        return frozenset()
