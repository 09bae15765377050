"""Folders that the viewer opens: training runs and evaluations, their record files and their index."""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from verl_agent.errors import ConfigError
from verl_agent.trace.abandoned import read_abandoned
from verl_agent.trace.record_files import REPLIES

Kind = Literal["training", "evaluation", "records"]
_START = re.compile(r"(\d{4})(\d\d)(\d\d)T(\d\d)(\d\d)(\d\d)")
"""Name of a metrics file; see `verl_agent.runs.folder.RunFolder.metrics`."""


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

    def record_files(self) -> list[Path]:
        """Return the files of records, sorted by path; the list grows while a run writes."""
        if self.path.is_file():
            return [self.path]
        root = self.path / "episodes" if self.kind == "training" else self.path
        return sorted(file for file in root.rglob("*.jsonl") if file.parent.name != "metrics" and file.name != REPLIES)

    def metrics_size(self) -> int:
        """Return the bytes of the metrics files."""
        return sum(file.stat().st_size for file in self.metrics_files() if file.exists())

    def starts(self) -> list[str]:
        """Return the times at which a training run was started or resumed, ISO 8601 in UTC, in order."""
        found = (_START.fullmatch(file.stem) for file in self.metrics_files())
        return ["{}-{}-{}T{}:{}:{}".format(*start.groups()) for start in found if start is not None]

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
    parts = [Path(folder) for folder, below, files in os.walk(source.path) if _is_run(below, files)]
    parts = [part for part in parts if not any(parent in parts for parent in part.parents)]
    inside = all(any(part in file.parents for part in parts) for file in source.record_files())
    return [open_source(part) for part in sorted(parts)] if parts and inside else [source]


def _is_run(folders: list[str], files: list[str]) -> bool:
    return "episodes.jsonl" in files or ("metrics" in folders and "episodes" in folders)
