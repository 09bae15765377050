"""Opening of SQLite databases for writing, on whatever file system they lie.

SQLite's write-ahead log needs memory that processes share through a file, which cluster file systems refuse:
https://sqlite.org/wal.html. Its rollback journal needs only locks, which some refuse too.
"""

import logging
import sqlite3
from contextlib import closing
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from verl_agent.errors import ConfigError

BUSY_S = 30.0
"""Seconds that a connection waits for another one."""
JOURNALS = ("WAL", "DELETE")
"""Journal modes, best first."""
_logger = logging.getLogger(__name__)


def connect(path: Path) -> sqlite3.Connection:
    """Open a connection in the best journal mode that the folder allows; transactions are begun explicitly.

    Raises:
        sqlite3.Error: no mode works.
    """
    db = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
    try:
        db.execute(f"PRAGMA journal_mode = {journal_of(path.parent)}")
    except sqlite3.Error:
        db.close()
        raise
    return db


@cache
def journal_of(folder: Path) -> str:
    """Return the best journal mode that works in a folder, found by writing and reading.

    Raises:
        sqlite3.Error: none works.
    """
    failures = []
    for mode in JOURNALS:
        try:
            with TemporaryDirectory(prefix=".sqlite-", dir=folder, ignore_cleanup_errors=True) as probe:
                _try(Path(probe, "probe"), mode)
        except OSError as error:
            raise sqlite3.OperationalError(f"{folder}: {error.strerror or error}") from error
        except sqlite3.Error as error:
            failures.append(f"journal mode {mode}: {error}")
        else:
            if failures:
                _logger.warning("%s: SQLite works with its rollback journal alone (%s)", folder, failures[0])
            return mode
    raise sqlite3.OperationalError(
        f"{folder} refuses SQLite ({'; '.join(failures)}), as do NFS without a lock service and Lustre without the "
        "mount option flock"
    )


def check_databases(folder: Path, advice: str) -> None:
    """Check that SQLite works in a folder.

    Raises:
        ConfigError: it does not; the message ends with `advice`.
    """
    try:
        journal_of(folder)
    except sqlite3.Error as error:
        raise ConfigError(f"{error}. {advice}") from error


def _try(file: Path, mode: str) -> None:
    """Write with one connection and read with another, as the users of a database do."""
    with (
        closing(sqlite3.connect(file, timeout=1.0, isolation_level=None)) as writer,
        closing(sqlite3.connect(file, timeout=1.0, isolation_level=None)) as reader,
    ):
        found = writer.execute(f"PRAGMA journal_mode = {mode}").fetchone()[0]
        if found.upper() != mode:
            raise sqlite3.OperationalError(f"SQLite chose {found}")
        writer.execute("CREATE TABLE probe (value)")
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("INSERT INTO probe VALUES (1)")
        writer.execute("COMMIT")
        if reader.execute("SELECT count(*) FROM probe").fetchone() != (1,):
            raise sqlite3.OperationalError("another connection does not see what was written")
