"""Changes of a session's copy of the sites, as added, removed and changed records."""

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from functools import lru_cache
from pathlib import Path

from env_adapters.web_sites.record_views import BOOKKEEPING, CREATION, VIEWS
from env_adapters.web_sites.served.pristine import change_counter
from env_adapters.webarena.grading.changes import ADDED, CHANGED, REMOVED, Change, Values

BUSY_TIMEOUT_S = 10.0
DATABASES: Mapping[str, str] = {"shop": "shop.sqlite3", "forum": "forum.sqlite3", "code": "code/*.fossil"}
"""Database files of each site below the folder of a copy."""
TABLES = """SELECT name, iif(wr, (SELECT group_concat('quote("' || part.name || '")', ' || '' '' || ')
    FROM pragma_table_info(one.name) part WHERE pk > 0), NULL)
    FROM pragma_table_list one WHERE schema = 'main' AND type <> 'view' AND name <> 'sqlite_schema'"""
"""SQL query of all tables; a table without `rowid` has the SQL expression of its primary key."""
Records = Mapping[tuple[str, str], Values]
"""Values of each record by its kind and key."""


def record_changes(before: Path, after: Path) -> list[Change]:
    """Return the changes of a copy, in the order in which records of a kind were added.

    Args:
        before: folder with the initial state.
        after: folder of the copy; databases that it does not have are unchanged.
    """
    found: list[Change] = []
    for site, pattern in DATABASES.items():
        for file in sorted(after.glob(pattern)):
            original = before / file.relative_to(after)
            if change_counter(file) != change_counter(original):
                prefix = f"{file.stem} " if site == "code" else ""
                found += difference(initial_records(original, site), read_site_records(file, site), prefix)
    return found


def difference(before: Records, after: Records, prefix: str = "") -> Iterator[Change]:
    """Yield the changes between two states; `prefix` precedes the kinds of records."""
    for (record, key), values in before.items():
        if (record, key) not in after:
            yield Change(REMOVED, prefix + record, key, values)
    for (record, key), values in after.items():
        old = before.get((record, key))
        if old is None:
            yield Change(ADDED, prefix + record, key, values)
        elif old != values:
            changed = {name: text for name, text in values.items() if old.get(name) != text}
            yield Change(CHANGED, prefix + record, key, changed)


@lru_cache(maxsize=16)
def initial_records(file: Path, site: str) -> Records:
    """Return the records of a file of the initial state, which never changes."""
    return read_site_records(file, site)


def read_site_records(file: Path, site: str) -> Records:
    """Return all records of a database; those of a kind are in the order of their creation."""
    with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True, timeout=BUSY_TIMEOUT_S)) as database:
        database.text_factory = decoded
        database.execute("BEGIN")  # all queries read the same state
        queries = {name: f"{query} ORDER BY {CREATION.get(name, '1')}" for name, query in VIEWS[site].items()}
        for table, keys in database.execute(TABLES).fetchall():
            if table not in BOOKKEEPING[site]:
                queries[f"table {table}"] = f'SELECT {keys or "rowid"} AS "record key", * FROM "{table}" ORDER BY 1'
        return {
            (name, key): values
            for name, query in queries.items()
            for key, values in keyed_rows(database.execute(query))
        }


def keyed_rows(cursor: sqlite3.Cursor) -> Iterator[tuple[str, Values]]:
    """Yield the key and the values of each row."""
    names: Sequence[str] = [column[0] for column in cursor.description]
    for key, *values in cursor:
        yield str(key), dict(zip(names[1:], map(cell_text, values), strict=True))


def decoded(text: bytes) -> str:
    """Return a text of a database; Fossil stores what a form sends, which may be invalid UTF-8."""
    return text.decode(errors="replace")


def cell_text(value: object) -> str:
    """Return a value as a text with single spaces; NULL is empty."""
    return "" if value is None else " ".join(str(value).split())
