"""SQLite file of an index: its place, its version, transactions, and errors that the machine causes."""

import logging
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp

from verl_agent.envs.machine.databases import connect, journal_of
from verl_agent.errors import ConfigError
from verl_agent.viewer.sources import RunSource
from verl_agent.viewer.summaries import add_functions
from verl_agent.viewer.tables import INDEX_VERSION, TABLES

logger = logging.getLogger(__name__)

FOLDER = ".viewer"
"""Folder beside the records with the index. It may be deleted at any time."""
CACHE_KB, READ_CACHE_KB = 32_000, 4_000
"""Memory for pages of the file: of the connection that writes, and of each that reads."""

REFUSALS = (sqlite3.SQLITE_PROTOCOL, sqlite3.SQLITE_IOERR)
"""Primary result codes of a file system that refuses the write-ahead log of a file, which another machine wrote."""
_STORAGE_ERRORS = (
    sqlite3.SQLITE_PROTOCOL,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_BUSY,
)
"""Primary result codes that the machine causes, not the program."""


def open_index(source: RunSource, name: str, folder: Path | None) -> tuple[Path, sqlite3.Connection]:
    """Open the index of a source for writing, and return its file and the connection.

    It lies in `.viewer/` beside the records unless another folder is given. Where that cannot be written, or refuses a
    file that another machine has written with a log that this machine's file system does not allow, it lies in a
    temporary folder.

    Raises:
        ConfigError: the file cannot be written.
    """
    path = (folder or source.folder / FOLDER) / name
    with explained(path):
        try:
            if folder is None:
                _prepare(path.parent)
            return path, open_index_file(path)
        except (OSError, sqlite3.OperationalError) as error:
            refused = isinstance(error, OSError) or primary_code(error) in REFUSALS
            if folder is not None or not refused:
                raise
            path = _temporary_folder(source, error) / name
            return path, open_index_file(path)


def _prepare(folder: Path) -> None:
    """Create a folder in which SQLite can write; raises OSError if it cannot."""
    folder.mkdir(exist_ok=True)
    if not os.access(folder, os.W_OK):
        raise PermissionError("no permission to write")
    try:
        journal_of(folder)
    except sqlite3.Error as error:
        raise OSError(str(error)) from error


def _temporary_folder(source: RunSource, reason: Exception) -> Path:
    folder = source.folder / FOLDER
    logger.warning("%s cannot be written (%s): the index lies in a temporary folder", folder, reason)
    try:
        return Path(mkdtemp(prefix="verl-agent-view-"))
    except OSError as error:
        raise ConfigError(
            f"the index of {source.path} can be written neither to {folder} ({reason}) nor to a temporary folder "
            f"({error}). Free disk space, or set TMPDIR to a folder on another disk."
        ) from error


def open_index_file(path: Path) -> sqlite3.Connection:
    """Open the file for writing, with its tables; a file of another version or a broken one is built anew."""
    try:
        db = open_connection(path)
        if _version(db) not in (0, INDEX_VERSION):
            db.close()
            raise sqlite3.DatabaseError("another version")
    except sqlite3.OperationalError:
        raise
    except sqlite3.DatabaseError as error:
        logger.info("%s: build anew (%s)", path, error)
        for suffix in ("", "-wal", "-shm"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        db = open_connection(path)
    add_functions(db)
    with transaction(db):
        if _version(db) != INDEX_VERSION:
            for statement in TABLES:
                db.execute(statement)
            db.execute(f"PRAGMA user_version = {INDEX_VERSION}")
    return db


def open_connection(path: Path, cache_kb: int = CACHE_KB) -> sqlite3.Connection:
    """Open a connection whose rows are `sqlite3.Row`."""
    db = connect(path)
    db.row_factory = sqlite3.Row
    db.execute("PRAGMA synchronous = OFF")  # a lost index is built again
    db.execute(f"PRAGMA cache_size = -{cache_kb}")
    return db


def stored_path(row: sqlite3.Row) -> Path:
    """Return the path of a file of records in a row of the index."""
    return Path(os.fsdecode(row["path"]))


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """Run statements in one transaction, which is undone if one fails."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        if db.in_transaction:  # a full disk has ended it already
            db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Raise a ConfigError that names the file for errors that the machine causes, such as a full disk.

    A damaged file, which SQLite may notice late, is one of them.
    """
    try:
        yield
    except sqlite3.DatabaseError as error:
        code = primary_code(error)
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            raise ConfigError(
                f"The index {path} is damaged ({error}). Stop the viewer, delete {path.parent} and start it again; the "
                "records are not changed."
            ) from error
        if code not in _STORAGE_ERRORS:
            raise
        raise ConfigError(
            f"The index {path} cannot be written ({error}). Free disk space or delete {path.parent}; the records are "
            "not changed."
        ) from error


def primary_code(error: sqlite3.Error) -> int:
    """Return the primary result code of SQLite."""
    return int(getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)) & 0xFF


def _version(db: sqlite3.Connection) -> int:
    return int(db.execute("PRAGMA user_version").fetchone()[0])
