"""Index of episode records: one SQLite file beside a run, rebuilt at any time from the records.

The records stay the truth. The index holds where each record lies, its header, the behaviors of its turns and, in a
full-text table, its words. `RecordIndex.update` reads only what was appended since the last call.
"""

import json
import os
import shutil
import sqlite3
import threading
from collections.abc import Iterator
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Self

from verl_agent.errors import ConfigError
from verl_agent.trace.labels import KEY_FIELDS, LabelFile
from verl_agent.trace.record import EpisodeRecord, parse_record
from verl_agent.viewer.parsing import BadLine, Line, read_lines
from verl_agent.viewer.sources import RunSource
from verl_agent.viewer.storage import (
    FOLDER,
    READ_CACHE_KB,
    explained,
    open_connection,
    open_index,
    stored_path,
    transaction,
)
from verl_agent.viewer.summaries import Step, drop_file, mark_replaced, update_sums
from verl_agent.viewer.tables import INSERT_EPISODE, storable

BATCH = 4000
"""Records that are written in one transaction. Larger ones leave fewer parts of the full-text table to merge."""


class RecordIndex:
    """SQLite index of the records of one source. One writer at a time; several processes may read and update it.

    The file lies in `<folder>/.viewer/`. Where that cannot be written, it lies in a temporary folder.

    Args:
        folder: folder of the index instead of that beside the records.

    Raises:
        ConfigError: the index cannot be written, for example because the disk is full.
    """

    def __init__(self, source: RunSource, folder: Path | None = None) -> None:
        self.source = source
        self.path, self._db = open_index(source, f"{_shortened(source.name)}.sqlite", folder)
        self._temporary = folder is None and self.path.parent != source.folder / FOLDER
        self._labels_version: object = None
        self._replays: tuple[list[str], frozenset[str]] = ([], frozenset())
        self._read_states: dict[Path, tuple[int, int, int]] = {}  # of files that had no further complete line
        self._local = threading.local()
        self._connections: list[sqlite3.Connection] = []
        with explained(self.path):
            self._first = open_connection(self.path, READ_CACHE_KB)
        self._connections.append(self._first)

    @property
    def db(self) -> sqlite3.Connection:
        """Connection of this thread for queries; rows are `sqlite3.Row`. Updates use a connection of their own.

        A connection that several threads shared would let a short query wait for a long one.
        """
        found: sqlite3.Connection | None = getattr(self._local, "db", None)
        if found is None:
            try:
                found = open_connection(self.path, READ_CACHE_KB)
                self._connections.append(found)
            except sqlite3.OperationalError:  # the folder was deleted: what was indexed before is still shown
                found = self._first
            self._local.db = found
        return found

    def close(self) -> None:
        """Close the connections. The file stays for the next time, unless its folder is a temporary one."""
        for db in (self._db, *self._connections):
            db.close()
        if self._temporary:
            shutil.rmtree(self.path.parent, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def update(self) -> int:
        """Read the labels and everything that was appended since the last call.

        Returns:
            Number of new episodes.
        """
        self.update_labels()
        before = self._count()
        for _ in self.update_in_steps():
            pass
        return self._count() - before

    def update_in_steps(self) -> Iterator[tuple[int, int]]:
        """Do the work of `update`, and yield the indexed and all bytes of the files after each batch of records.

        Raises:
            ConfigError: the index cannot be written, or the source was deleted.
        """
        with explained(self.path):
            if not self.source.path.exists():
                raise ConfigError(
                    f"'{self.source.path}' was deleted. The pages show what was indexed before; its episodes cannot be "
                    "opened any more."
                )
            files = self.source.record_files()
            self._forget(set(map(os.fsencode, files)))
            total = sum(_size(file) for file in files)
            done = 0
            if self._mark_replaced():
                yield done, total
            for file in files:
                for offset in self._read_new(file):
                    self._mark_replaced(new=True)
                    yield done + offset, total
                done += _size(file)

    def update_labels(self) -> bool:
        """Read the file of labels if it has changed, and return True if so.

        Raises:
            ConfigError: the file is invalid, or the index cannot be written.
        """
        file = LabelFile.of(self.source.path)
        try:
            status = file.path.stat()
            version: object = (status.st_ino, status.st_mtime_ns, status.st_size)
        except FileNotFoundError:
            version = "no file"
        if version == self._labels_version:
            return False
        rows = [
            [storable(value) for value in (*key, f" {' '.join(label.tags)} ", label.note)]
            for key, label in file.read().items()
        ]
        try:
            with explained(self.path), transaction(self._db):
                self._db.execute("DELETE FROM labels")
                self._db.executemany(f"INSERT INTO labels VALUES ({', '.join('?' * (len(KEY_FIELDS) + 2))})", rows)
        except OverflowError as error:
            raise ConfigError(f"{file.path} has a key that no episode has ({error}). Repair or delete it.") from error
        self._labels_version = version
        return True

    def read(self, episode: int) -> EpisodeRecord:
        """Read the whole record of an episode from its file.

        Raises:
            ConfigError: no such episode, or the file changed since it was indexed.
        """
        row = self.db.execute(
            "SELECT path, offset, length FROM episodes JOIN files ON files.id = file WHERE episodes.id = ?", (episode,)
        ).fetchone()
        if row is None:
            raise ConfigError(f"No episode {episode} in the index of '{self.source.path}'.")
        try:
            with stored_path(row).open("rb") as file:
                file.seek(row["offset"])
                return parse_record(json.loads(file.read(row["length"])))
        except (OSError, ValueError, ConfigError) as error:
            raise ConfigError(f"Episode {episode} is no longer where it was in {stored_path(row)}: {error}") from error

    def count_bad_lines(self) -> int:
        """Return the number of lines that were skipped."""
        return int(self.db.execute("SELECT count(*) FROM bad_lines").fetchone()[0])

    def bad_lines(self, limit: int = 100) -> list[BadLine]:
        """Return the first lines that were skipped, in order of file and position."""
        rows = self.db.execute(
            "SELECT path, offset, message FROM bad_lines JOIN files ON files.id = file ORDER BY path, offset LIMIT ?",
            (limit,),
        )
        return [BadLine(stored_path(row), row["offset"], row["message"]) for row in rows]

    def _count(self) -> int:
        return int(self._db.execute("SELECT count(*) FROM episodes").fetchone()[0])

    def _forget(self, present: set[bytes]) -> None:
        """Drop the rows of files that were deleted."""
        gone = [row["id"] for row in self._db.execute("SELECT id, path FROM files") if row["path"] not in present]
        if gone:
            self._read_states.clear()
            with transaction(self._db):
                for file in gone:
                    drop_file(self._db, file)

    def _mark_replaced(self, new: bool = False) -> bool:
        """Mark the episodes that a later start of the run played again, and return True if any changed.

        Args:
            new: True if episodes were added since the last call; otherwise only a new start changes anything.
        """
        replays = (starts, abandoned) = self.source.starts(), self.source.abandoned_groups()
        if (len(starts) < 2 and not abandoned) or (replays == self._replays and not new):
            return False
        with transaction(self._db):
            changed = mark_replaced(self._db, starts, abandoned)
        self._replays = replays
        return changed

    def _read_new(self, path: Path) -> Iterator[int]:
        """Index the complete new lines of one file; yield the position after each batch."""
        try:
            file = path.open("rb")
        except FileNotFoundError:
            return
        with file:
            status = os.fstat(file.fileno())
            state = (status.st_ino, status.st_size, status.st_mtime_ns)
            if self._read_states.get(path) == state:
                return
            lines: Iterator[Line] = iter(())
            follows = -1
            while True:
                with transaction(self._db):
                    row = self._file_row(path, file.fileno())
                    offset = int(row["indexed"])
                    if offset != follows:  # the first lines, or another process has written the next ones
                        lines = read_lines(path, offset)
                    steps: set[Step] = set()
                    follows = offset
                    for line in islice(lines, BATCH):
                        steps |= self._add_line(int(row["id"]), line)
                        follows = line.offset + line.length
                    update_sums(self._db, steps)
                    self._db.execute("UPDATE files SET indexed = ? WHERE id = ?", (follows, row["id"]))
                if follows == offset:
                    self._read_states[path] = state
                    return
                yield follows

    def _file_row(self, path: Path, descriptor: int) -> sqlite3.Row:
        """Return the row of a file; one that was replaced or truncated starts anew."""
        status = os.fstat(descriptor)
        head = os.pread(descriptor, 256, 0).split(b"\n")[0]
        name = os.fsencode(path)
        row: sqlite3.Row | None = self._db.execute("SELECT * FROM files WHERE path = ?", (name,)).fetchone()
        if row is not None:
            same = row["inode"] == status.st_ino and status.st_size >= row["indexed"]
            if same and (row["indexed"] == 0 or row["head"] == head):
                if row["indexed"] == 0:
                    self._db.execute("UPDATE files SET head = ? WHERE id = ?", (head, row["id"]))
                return row
            drop_file(self._db, row["id"])
        self._db.execute(
            "INSERT INTO files (path, inode, head, indexed) VALUES (?, ?, ?, 0)", (name, status.st_ino, head)
        )
        created: sqlite3.Row = self._db.execute("SELECT * FROM files WHERE path = ?", (name,)).fetchone()
        return created

    def _add_line(self, file: int, line: Line) -> set[Step]:
        """Add the episode of a line, and return its step; empty for an invalid line."""
        message = line.text
        if line.row is not None:
            try:
                cursor = self._db.execute(INSERT_EPISODE, [file, line.offset, line.length, *line.row])
            except OverflowError as error:  # a number above 64 bits
                message = str(error)
            else:
                self._db.execute("INSERT INTO words (rowid, text) VALUES (?, ?)", (cursor.lastrowid, line.text))
                if line.head is not None:
                    self._add_parts(cursor.lastrowid, *line.head)
                return {line.step}
        self._db.execute("INSERT INTO bad_lines VALUES (?, ?, ?)", (file, line.offset, message))
        return set()

    def _add_parts(self, episode: int | None, mark: str, record: str, parts: list[tuple[int, int, str]]) -> None:
        self._db.execute("INSERT INTO heads VALUES (?, ?, ?)", (episode, mark, record))
        rows = [(episode, number, *part) for number, part in enumerate(parts)]
        self._db.executemany("INSERT INTO parts VALUES (?, ?, ?, ?, ?)", rows)


def _shortened(name: str) -> str:
    """Return a name that leaves room for the suffixes of SQLite's files in the 255 bytes of a file's name."""
    whole = os.fsencode(name)
    return name if len(whole) <= 230 else f"{name[:40]}-{sha256(whole).hexdigest()[:16]}"


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
