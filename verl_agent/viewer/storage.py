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

    It lies in a temporary folder where the one beside the records refuses it, for example because another machine has
    written it with a log that this machine's file system does not allow.

    Raises:
        ConfigError: the file cannot be written.
    """
    path = (folder or index_folder(source)) / name
    with explained(path):
        try:
            return path, open_index_file(path)
        except sqlite3.OperationalError as error:
            if primary_code(error) not in REFUSALS or path.parent != source.folder / FOLDER:
                raise
            path = temporary_folder(source, str(error)) / name
            return path, open_index_file(path)


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


def index_folder(source: RunSource) -> Path:
    """Return the folder of the index: `.viewer/` beside the records, or a temporary one where SQLite cannot write.

    Raises:
        ConfigError: neither can be created.
    """
    folder = source.folder / FOLDER
    try:
        folder.mkdir(exist_ok=True)
        if os.access(folder, os.W_OK):
            journal_of(folder)
            return folder
        reason = "no permission to write"
    except sqlite3.Error as error:
        reason = str(error)
    except OSError as error:
        reason = error.strerror or str(error)
    return temporary_folder(source, reason)


def temporary_folder(source: RunSource, reason: str) -> Path:
    """Return a new temporary folder for the index.

    Args:
        reason: reason why `.viewer/` beside the records cannot be used.

    Raises:
        ConfigError: it cannot be created.
    """
    folder = source.folder / FOLDER
    logger.warning("%s cannot be written (%s): the index lies in a temporary folder", folder, reason)
    try:
        return Path(mkdtemp(prefix="verl-agent-view-"))
    except OSError as error:
        raise ConfigError(
            f"the index of {source.path} can be written neither to {folder} ({reason}) nor to a temporary folder "
            f"({error}). Free disk space, or set TMPDIR to a folder on another disk."
        ) from error


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
