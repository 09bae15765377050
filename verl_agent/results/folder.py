"""Output folder of an evaluation: its files, its report, its planned records, and the search for such folders."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from verl_agent.errors import ConfigError, counted
from verl_agent.trace.record import EpisodeRecord
from verl_agent.trace.record_files import read_records

RECORDS, REPORT, SETTINGS, LOG = "episodes.jsonl", "evaluation.json", "settings.json", "evaluation.log"
GAME = "game.json"
"""Settings of the tasks that `verl-agent play` recorded in a folder."""


def evaluations_in(folder: Path) -> list[Path]:
    """Return the output folders of evaluations at and below a folder.

    Raises:
        ConfigError: there is no such folder.
    """
    found = sorted(path.parent.resolve() for path in folder.rglob(REPORT))
    if not found:
        raise ConfigError(f"{folder} contains no {REPORT}. Give output folders of `verl-agent eval`.")
    return found


def read_report(folder: Path) -> dict[str, Any]:
    """Return the report of an evaluation.

    Raises:
        ConfigError: the folder holds none.
    """
    path = folder / REPORT
    if not path.is_file():
        raise ConfigError(f"{folder} contains no {REPORT}. Give the output folder of `verl-agent eval`.")
    report: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return report


def model_name(model: str) -> str:
    """Return a short name of a model: `<run>_step<n>` for a checkpoint, else the last part of path or hub id."""
    checkpoint = re.search(r"([^/]+)/global_step_(\d+)(?:/|$)", model)
    return f"{checkpoint[1]}_step{checkpoint[2]}" if checkpoint else re.split("[/:]", model.rstrip("/"))[-1]


def planned_records(folder: Path) -> list[EpisodeRecord]:
    """Return the records of the tasks and samples that the last start of an evaluation planned.

    An evaluation may resume with fewer tasks or samples; records of the others stay in the folder and count nowhere.
    Without a report, and with one of an earlier version that does not list the tasks, all records are planned.

    Raises:
        ConfigError: the folder has no records, or they cannot be read.
    """
    records = list(read_records(folder / RECORDS))
    report = read_report(folder) if (folder / REPORT).is_file() else {}
    if "planned_tasks" not in report:
        return records
    tasks, samples = set(report["planned_tasks"]), report["config"]["evaluation"].get("samples", 1)
    return [record for record in records if record["task"] in tasks and record["sample"] < samples]


def unplayed(folder: Path, records: Sequence[EpisodeRecord]) -> str:
    """Return how much of an evaluation was played, such as `12 of 60 episodes`; empty if it is finished."""
    played = len({(record["task"], record["sample"]) for record in records})
    if not (folder / REPORT).is_file():
        return f"{counted(played, 'episode')} and no {REPORT}"
    planned = read_report(folder)["planned"]
    return f"{played} of {counted(planned, 'episode')}" if played < planned else ""
