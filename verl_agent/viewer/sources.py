"""Folders that the viewer opens: training runs and evaluations, their record files and their index."""

import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from verl_agent.errors import ConfigError
from verl_agent.json_lines import REPLIES
from verl_agent.trace.abandoned import read_abandoned, start_times
from verl_agent.trace.record import parse_line

logger = logging.getLogger(__name__)
MAX_FIRST_LINE = 64 * 2**20
"""Most bytes of the first line of a file beside runs, by which records are told from other files."""
Kind = Literal["training", "evaluation", "records"]


@dataclass(frozen=True, slots=True)
class RunSource:
    """One folder or file of episode records.

    Attributes:
        path: path of the run, evaluation or file, absolute.
        kind: `training` for the folder of a training run, `evaluation` for a folder with `episodes.jsonl`, `records`
            for other folders and files.
    """

    path: Path
    kind: Kind

    @property
    def name(self) -> str:
        """Last part of the path."""
        return self.path.name

    @property
    def folder(self) -> Path:
        """Folder of the source; of a file, the folder that holds it."""
        return self.path if self.path.is_dir() else self.path.parent

    @property
    def records(self) -> Path:
        """Folder of the files of records."""
        return self.path / "episodes" if self.kind == "training" else self.folder

    def record_files(self) -> list[Path]:
        """Return the files of records, sorted by path; the list grows while a run writes."""
        if self.path.is_file():
            return [self.path]
        return sorted(
            file for file in self.records.rglob("*.jsonl") if file.parent.name != "metrics" and file.name != REPLIES
        )

    def metrics_size(self) -> int:
        """Return the bytes of the metrics files."""
        return sum(file.stat().st_size for file in self.metrics_files() if file.exists())

    def starts(self) -> list[str]:
        """Return the times at which a training run was started or resumed, ISO 8601 in UTC, in order."""
        return start_times(self.metrics_files())

    def abandoned_groups(self) -> frozenset[str]:
        """Return the groups of a training run that it plays again under other names after a resume."""
        return read_abandoned(self.path) if self.kind == "training" else frozenset()

    def metrics_files(self) -> list[Path]:
        """Return the metrics files of all starts, oldest first; empty if the source is no training run."""
        return sorted((self.path / "metrics").glob("*.jsonl")) if self.kind == "training" else []


def open_source(path: Path | str) -> RunSource:
    """Return the source at a path.

    Raises:
        ConfigError: the path does not exist, or holds no episode records and no metrics.
    """
    path = Path(path).resolve()
    if not path.exists():
        raise ConfigError(f"No run at '{path}': no such file or folder.")
    if path.is_dir() and (path / "metrics").is_dir():
        return RunSource(path, "training")
    source = RunSource(path, "evaluation" if (path / "episodes.jsonl").is_file() else "records")
    if not source.record_files():
        raise ConfigError(
            f"'{path}' is no run: it has neither metrics/ nor *.jsonl files with episode records. Give the folder of a "
            "training run (trainer.default_local_dir), of an evaluation (evaluation.output_dir), or a file of records."
        )
    return source


def open_sources(path: Path | str) -> list[RunSource]:
    """Return the sources at a path; of a folder of runs and evaluations, each of them."""
    source = open_source(path)
    if source.kind != "records" or source.path.is_file():
        return [source]
    parts = find_runs(source.path)
    beside = [file for file in source.record_files() if not any(part in file.parents for part in parts)]
    strays = [file for file in beside if parts and not _holds_records(file)]
    for file in strays:
        logger.warning("%s is skipped: its first line is no episode record", file)
    return [open_source(part) for part in parts] if parts and len(strays) == len(beside) else [source]


def find_runs(root: Path) -> list[Path]:
    """Return the folders of runs and evaluations at and below a folder, none of which is below another one."""
    found: list[Path] = []
    for folder, below, files in os.walk(root):
        if _is_run(Path(folder), below, files):
            found.append(Path(folder))
            below.clear()
    return sorted(found)


def _holds_records(file: Path) -> bool:
    """Return True if the first line of a file is an episode record."""
    try:
        with file.open("rb") as lines:
            parse_line(lines.readline(MAX_FIRST_LINE))
    except (OSError, ValueError, RecursionError, ConfigError):
        return False
    return True


def _is_run(folder: Path, folders: list[str], files: list[str]) -> bool:
    """Return True for an evaluation, and for a training run, of which offline ones have metrics and no episodes."""
    return "episodes.jsonl" in files or ("metrics" in folders and any((folder / "metrics").glob("*.jsonl")))
