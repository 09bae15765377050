"""Files of episode records: append to one, read many."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from verl_agent.errors import ConfigError
from verl_agent.json_lines import REPLIES, json_lines, remove_unfinished_line
from verl_agent.trace.frame import make_frame, write_parquet
from verl_agent.trace.record import EpisodeRecord, parse_record

if TYPE_CHECKING:
    import pandas


class EpisodeWriter:
    """Writer that appends records to one file; each record is on disk before `write` returns.

    Only one process may write a file. If a killed process left an unfinished last line, opening the file removes it.

    Args:
        path: path of the file; it and its folders are created if missing.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        remove_unfinished_line(self.path)
        self._file = self.path.open("a", encoding="utf-8")

    def write(self, record: EpisodeRecord) -> None:
        """Append one line."""
        self._file.write(json.dumps(record) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file. May be called more than once."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class RecordReader(Iterator[EpisodeRecord]):
    """Iterator over records, which may also be read into a table. Like any iterator, it can be used once."""

    def __init__(self, records: Iterator[EpisodeRecord]) -> None:
        self._records = records

    def __next__(self) -> EpisodeRecord:
        return next(self._records)

    def to_frame(self, turns: bool = False) -> "pandas.DataFrame":
        """Return a pandas frame with one row an episode, or one a turn; see `verl_agent.trace.frame`."""
        return make_frame(self, turns)

    def to_parquet(self, path: Path | str) -> int:
        """Write whole records to a Parquet file and return their number; see `verl_agent.trace.frame`."""
        return write_parquet(self, path)


def read_records(paths: Path | str | Iterable[Path | str]) -> RecordReader:
    """Iterate over the records in files, and in all `*.jsonl` files below folders, sorted by file name.

    For the folder of a training run only its `episodes/` is read.

    Raises:
        ConfigError: when a record is read: a path does not exist, or a line is not a valid record. An unfinished last
            line is skipped with a warning.
    """
    return RecordReader(_read(paths))


def _read(paths: Path | str | Iterable[Path | str]) -> Iterator[EpisodeRecord]:
    for path in map(Path, [paths] if isinstance(paths, Path | str) else paths):
        if not path.exists():
            raise ConfigError(f"No episode records at '{path}': no such file or folder.")
        for file in record_files(path):
            yield from _read_file(file)


def record_files(path: Path) -> list[Path]:
    """Return the files of records of a run, of a folder or at a path of a file, sorted by path.

    The replies of an API, which lie beside the records of an evaluation, are no records.
    """
    is_run = (path / "episodes").is_dir() and (path / "metrics").is_dir()
    source = path / "episodes" if is_run else path
    found = (file for file in source.rglob("*.jsonl") if file.name != REPLIES)
    return sorted(found) if source.is_dir() else [source]


def read_latest(path: Path, most_bytes: int) -> Iterator[EpisodeRecord]:
    """Iterate over the latest records of a run: those in the last `most_bytes` of each file."""
    for file in record_files(path):
        yield from _read_file(file, max(0, file.stat().st_size - most_bytes))


def _read_file(path: Path, start: int = 0) -> Iterator[EpisodeRecord]:
    """Iterate over the records of a file, from the first line that begins after byte `start`."""
    for number, value in json_lines(path, start):
        try:
            yield parse_record(value)
        except ConfigError as error:
            raise ConfigError(f"{path}:{number}: {error}") from error
