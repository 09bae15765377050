"""Claim of a folder by one run: a lock while it runs, and its settings, which a later start must not change."""

import json
import logging
import os
import shlex
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from verl_agent.config.keys import FREE, is_below
from verl_agent.envs.machine.locks import FileLock
from verl_agent.errors import ConfigError
from verl_agent.runs.heartbeat import beat
from verl_agent.trace.provenance import read_json, write_json_atomically

logger = logging.getLogger(__name__)

SETTINGS_FILE = "run.json"
"""File in the folder of a run with the settings that the run keeps from its first step to its last."""
LOCK_FILE = ".lock"
"""File in the folder of a run that the process that runs it has locked; it names that process."""
PLAN_FILE = ".plan"
"""File with the number of training steps, which the settings leave out, since a resumed run may change it."""
TASK_IDS = "ids of env.train_tasks"
TASK_CONTENTS = "contents of env.train_tasks"
"""Key of `task_contents`, which runs of earlier versions lack."""
VERSION = 2
MAX_LISTED = 5
"""Number of changed settings in a message."""
OPEN = (
    *FREE,
    "horizon.adaptive.",
    "horizon.per_task.",
    "horizon.replay.",
    "optim.override_optimizer_config.",
    "data.mm_processor_kwargs.",
)
"""Sections whose keys the recipe chooses. In all others, a key that one side lacks is one of another version."""

_locks: dict[Path, FileLock] = {}
"""Lock files that this process holds until it ends, by folder."""


def claim(
    folder: Path,
    settings: Mapping[str, Any],
    may_change: Sequence[str],
    *,
    contents: str,
    advice: str,
    file: str = SETTINGS_FILE,
    earlier: Mapping[str, Any] | None = None,
) -> None:
    """Lock a folder for this run, and record its settings or refuse changed ones.

    A setting that the record lacks, because the package that wrote it did not have it, is not compared.

    Args:
        folder: folder of the run, created if it is missing.
        settings: the whole config, nested, and facts beside it (for example, a hash of the task ids).
        may_change: patterns of dotted keys (see `fnmatch`) that a later start may change. A pattern covers all keys
            below those that it matches. Every other key is protected. A pattern with `*` does not match keys inside
            the sections of `OPEN`, because other code defines their names.
        contents: contents of the folder, for the message (for example, "step 3 of another recipe").
        earlier: settings to compare with; None for those in `file`, empty for none.

    Raises:
        ConfigError: another process holds the folder, or a protected setting changed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock(folder)
    recorded = read_settings(folder, file) if earlier is None else earlier
    now = _without(json.loads(json.dumps(settings, default=str)), may_change)
    changed = list(differences(_without(recorded, may_change), now))
    if changed:
        first = "; ".join(f"{key} was {was!r}, is now {value!r}" for key, was, value in changed[:MAX_LISTED])
        more = f"; and {len(changed) - MAX_LISTED} more" if len(changed) > MAX_LISTED else ""
        raise ConfigError(f"{folder} holds {contents}: {first}{more}. {advice}")
    if is_first_rank():
        write_json_atomically(folder / file, {"version": VERSION, **now})


def lock(folder: Path) -> None:
    """Hold a folder until this process ends, however it ends. The ranks of one torchrun run share the lock of rank 0.

    Raises:
        ConfigError: another process holds the folder.
    """
    folder = folder.resolve()
    if folder in _locks or not is_first_rank():
        return
    own = FileLock(folder / LOCK_FILE, of_process=True)
    if not own.acquire(wait=False):
        owner = own.path.read_text(encoding="utf-8").strip() or "another process"
        raise ConfigError(f"{folder} is in use by {owner}. Wait until it ends or stop it, or choose another folder.")
    own.write(
        f"process {os.getpid()} on {socket.gethostname()}, started {datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC: "
        f"{shlex.join(sys.orig_argv)}\n"
    )
    _locks[folder] = own
    beat(folder)


def write_plan(folder: Path, steps: int) -> None:
    """Record the number of training steps of the whole run."""
    write_json_atomically(folder / PLAN_FILE, {"steps": steps})


def read_plan(folder: Path) -> int:
    """Return the number of training steps of the whole run; 0 if it is not recorded.

    Raises:
        ConfigError: the file is damaged.
    """
    path, remedy = folder / PLAN_FILE, "Delete it; the run writes it again."
    try:
        steps = read_json(path, remedy, ["steps"])["steps"]
    except FileNotFoundError:
        return 0
    if not isinstance(steps, int):
        raise ConfigError(f"{path} has steps={steps!r}, which is no whole number. {remedy}")
    return steps


def read_settings(folder: Path, file: str = SETTINGS_FILE) -> dict[str, Any]:
    """Return the recorded settings of the run in a folder, nested; empty without a record."""
    path = folder / file
    if not path.is_file():
        return {}
    recorded = read_json(path, "Restore it, or delete the folder to start anew.")
    return {key: value for key, value in recorded.items() if key != "version"}


def differences(was: Any, now: Any, key: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield dotted key, recorded value and new value of each setting that differs.

    Only keys on both sides are compared. In the sections of `OPEN`, also inside nested recipes, a missing key counts
    as null.
    """
    if isinstance(was, Mapping) and isinstance(now, Mapping):
        compare_all = is_below(f"{key}.", OPEN)
        for name in [*was, *(name for name in now if name not in was)]:
            if compare_all or (name in was and name in now):
                yield from differences(was.get(name), now.get(name), f"{key}.{name}" if key else name)
    elif was != now:
        yield key, was, now


def _without(settings: Mapping[str, Any], patterns: Sequence[str], prefix: str = "") -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for name, value in settings.items():
        key = f"{prefix}{name}"
        exact = is_below(key, OPEN)
        if not any(fnmatchcase(key, pattern) and not (exact and "*" in pattern) for pattern in patterns):
            kept[name] = _without(value, patterns, f"{key}.") if isinstance(value, Mapping) else value
    return kept


def is_first_rank() -> bool:
    """Return True in the first process of a torchrun run, and in a run of one process."""
    return os.environ.get("RANK", "0") == "0"
