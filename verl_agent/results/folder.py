"""Output folder of an evaluation: its files, its report, its planned records, and the search for such folders."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import Any

from verl_agent.envs.model_api.settings import VENDORS
from verl_agent.errors import ConfigError, counted
from verl_agent.trace.provenance import read_json
from verl_agent.trace.record import EpisodeRecord
from verl_agent.trace.record_files import read_records

RECORDS, REPORT, SETTINGS, LOG = "episodes.jsonl", "evaluation.json", "settings.json", "evaluation.log"
PLAY = "play.json"
GAME = "game.json"
"""Settings of the tasks that `verl-agent play` recorded in a folder."""
_REMEDY = "Run eval again with the same folder: episodes that are recorded stay."
_SHAPES: Mapping[str, type | tuple[type, ...]] = {
    "config": dict,
    "config.env": dict,
    "config.env.name": str,
    "config.env.options": (dict, NoneType),
    "config.evaluation": dict,
    "config.evaluation.samples": int,
    "config.evaluation.perturb": (dict, NoneType),
    "model": str,
    "planned": int,
    "planned_tasks": list,
    "played": int,
    "provenance": dict,
    "results": list,
    "success_within_turns": (dict, NoneType),
}
"""Types of the values of a report, by dotted key. A report of an earlier version may lack those not in `_REQUIRED`."""
_REQUIRED = ("config.env.name", "config.evaluation")


def evaluations_in(folder: Path) -> list[Path]:
    """Return the output folders of evaluations at and below a folder.

    Raises:
        ConfigError: there is no such folder.
    """
    found = sorted(path.parent.resolve() for path in folder.rglob(REPORT))
    if not found:
        raise ConfigError(f"{folder} contains no {REPORT}. Give output folders of `verl-agent eval`.")
    return found


def read_report(folder: Path, *keys: str) -> dict[str, Any]:
    """Return the report of an evaluation.

    Args:
        keys: keys that the report must have besides `config`.

    Raises:
        ConfigError: the folder holds none, it lacks a key, or a value is of another type than `verl-agent eval` writes.
    """
    path = folder / REPORT
    if not path.is_file():
        raise ConfigError(f"{folder} contains no {REPORT}. Give the output folder of `verl-agent eval`.")
    report = read_json(path, _REMEDY, ("config", *keys))
    for key, allowed in _SHAPES.items():
        *above, last = key.split(".")
        parent: Any = report
        for name in above:
            parent = parent.get(name, {})
        if (last in parent or key in _REQUIRED) and not isinstance(parent.get(last), allowed):
            kind = f"is of the wrong type ({type(parent[last]).__name__})" if last in parent else "is missing"
            raise ConfigError(f"{path}: {key} {kind}. {_REMEDY}")
    if not all(isinstance(task, str) for task in report.get("planned_tasks", ())):
        raise ConfigError(f"{path}: planned_tasks is no list of task ids. {_REMEDY}")
    return report


def model_name(model: str) -> str:
    """Return a short name of a model, which a folder may have.

    It is `<run>_step<n>` or `<run>_best` for a checkpoint and NAME for `python:MODULE:NAME`. For others it is the last
    part of the path, the hub id or the name behind an API, with `-` for `:`.
    """
    name = re.sub(rf"^({'|'.join(VENDORS)}|python:[^:]*):", "", model.rstrip("/"))
    name = re.sub(r"(?<=[^/])(/actor)?(/model)?/huggingface$", "", name)  # weights inside a checkpoint
    if checkpoint := re.search(r"([^/]+)/global_step_(\d+)(?:/|$)", name):
        return f"{checkpoint[1]}_step{checkpoint[2]}"
    best = re.search(r"([^/.][^/]*)/best$", name)
    return f"{best[1]}_best" if best else name.rpartition("/")[2].replace(":", "-")


def planned_records(folder: Path) -> list[EpisodeRecord]:
    """Return the records of the tasks and samples that the last start of an evaluation planned.

    An evaluation may resume with fewer tasks or samples; records of the others stay in the folder and count nowhere.
    Without a report, and with one of an earlier version that does not list the tasks, all records are planned.

    Raises:
        ConfigError: the folder has no records, they cannot be read, or the report counts more than there are.
    """
    records = list(read_records(folder / RECORDS))
    report = read_report(folder) if (folder / REPORT).is_file() else {}
    if "planned_tasks" in report:
        tasks, samples = set(report["planned_tasks"]), report["config"]["evaluation"].get("samples", 1)
        records = [record for record in records if record["task"] in tasks and record["sample"] < samples]
    played, found = report.get("played", 0), _count(records)
    if found < played:
        raise ConfigError(
            f"{played - found} of {counted(played, 'record')} are missing in {folder / RECORDS} ({REPORT} counts "
            "them). Restore the file, or run eval again with the same folder, which plays the missing episodes."
        )
    return records


def unplayed(folder: Path, records: Sequence[EpisodeRecord]) -> str:
    """Return how much of an evaluation was played, such as `12 of 60 episodes`; empty if it is finished."""
    played = _count(records)
    if not (folder / REPORT).is_file():
        return f"{counted(played, 'episode')} and no {REPORT}"
    planned = read_report(folder, "planned")["planned"]
    return f"{played} of {counted(planned, 'episode')}" if played < planned else ""


def _count(records: Sequence[EpisodeRecord]) -> int:
    """Return the number of episodes; a record of a further attempt does not count."""
    return len({(record["task"], record["sample"]) for record in records})
