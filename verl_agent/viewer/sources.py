"""Folders that the viewer opens: training runs and evaluations, their record files and their index."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from verl_agent.errors import ConfigError

Kind = Literal["training", "evaluation", "records"]


@dataclass(frozen=True, slots=True)
class Source:
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
        return sorted(file for file in root.rglob("*.jsonl") if file.parent.name != "metrics")

    def metrics_size(self) -> int:
        """Return the bytes of the metrics files."""
        return sum(file.stat().st_size for file in self.metrics_files() if file.exists())

    def metrics_files(self) -> list[Path]:
        """Return the metrics files of all starts, oldest first; empty if the source is no training run."""
        return sorted((self.path / "metrics").glob("*.jsonl")) if self.kind == "training" else []


def open_source(path: Path | str) -> Source:
    """Return the source at a path.

    Raises:
        ConfigError: the path does not exist, or holds no episode records and no metrics.
    """
    path = Path(path).resolve()
    if not path.exists():
        raise ConfigError(f"No run at '{path}': no such file or folder.")
    if path.is_dir() and (path / "metrics").is_dir():
        return Source(path, "training")
    source = Source(path, "evaluation" if (path / "episodes.jsonl").is_file() else "records")
    if not source.record_files():
        raise ConfigError(
            f"'{path}' is no run: it has neither metrics/ nor *.jsonl files with episode records. Give the folder of a "
            "training run (trainer.default_local_dir), of an evaluation (evaluation.output_dir), or a file of records."
        )
    return source
