"""Storage of passages on disk: one JSON object a line, read by line number through a memory map."""

import json
import mmap
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from env_adapters.deepsearch.corpus import Passage, parse_contents
from verl_agent.errors import ConfigError

PASSAGES, OFFSETS = "passages.jsonl", "offsets.npy"


class PassageFile:
    """Read-only passages of a JSONL file in Search-R1's format. Threads and processes may share it."""

    def __init__(self, lines: Path, offsets: Path) -> None:
        """Map a file into memory.

        Args:
            lines: JSONL file with one `{"id", "contents"}` a line.
            offsets: NumPy file, int64 `(passages + 1,)`: start of each line in bytes, then the size of the file.

        Raises:
            ConfigError: the two files do not belong together.
        """
        self._offsets = np.load(offsets, mmap_mode="r")
        if lines.stat().st_size != int(self._offsets[-1]) or len(self._offsets) < 2:
            raise ConfigError(f"{lines} is empty or has changed since {offsets} was made. Build the index again.")
        with lines.open("rb") as file:
            self._lines = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, position: int) -> Passage:
        """Return the passage of a line, counted from 0."""
        row = json.loads(self._lines[int(self._offsets[position]) : int(self._offsets[position + 1])])
        return parse_contents(str(row["id"]), row["contents"])


def write_passages(passages: Iterable[Passage], folder: Path) -> Iterator[Passage]:
    """Write each passage and yield it. The files are complete when the iterator is exhausted."""
    offsets = [0]
    with (folder / PASSAGES).open("wb") as file:
        for passage in passages:
            row = {"id": passage.id, "contents": passage.contents}
            offsets.append(offsets[-1] + file.write(json.dumps(row, ensure_ascii=False).encode() + b"\n"))
            yield passage
    np.save(folder / OFFSETS, np.array(offsets, dtype=np.int64))


def open_passages(folder: Path) -> PassageFile:
    """Return the passages of the index in `folder`."""
    return PassageFile(folder / PASSAGES, folder / OFFSETS)


def open_jsonl(lines: Path, offsets: Path) -> PassageFile:
    """Return the passages of a user's JSONL file.

    The first call scans the file for line ends and stores them in `offsets`.
    """
    if not offsets.is_file():
        with lines.open("rb") as file:
            ends = np.cumsum(np.fromiter((len(line) for line in file), dtype=np.int64))
        offsets.parent.mkdir(parents=True, exist_ok=True)
        np.save(offsets, np.concatenate(([0], ends)))
    return PassageFile(lines, offsets)
