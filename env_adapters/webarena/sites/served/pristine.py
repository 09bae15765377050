"""Answers that are kept for copies in which nothing has changed yet, since they are the same in all of these.

SQLite counts the changes of a file in its header (bytes 24 to 27, https://sqlite.org/fileformat.html); a copy with the
count of the seed file is as it was made. Most episodes only read, and many open the same pages.
"""

import zlib
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

COUNTER_AT, COUNTER_BYTES = 24, 4
MAX_ANSWERS = 1000
KEY = ("HTTP_HOST", "PATH_INFO", "QUERY_STRING", "HTTP_COOKIE")
"""What an answer depends on, besides the state."""

Answer = tuple[str, list[tuple[str, str]], bytes]


class PristineAnswers:
    """The answers to GET requests, the least used being dropped first.

    Args:
        seed: database file that copies begin with.
    """

    def __init__(self, seed: Path) -> None:
        self.name, self.changes = seed.name, changes(seed)
        self.kept: OrderedDict[tuple[Any, ...], Answer] = OrderedDict()

    def key(self, environ: dict[str, Any], copy: Path) -> tuple[Any, ...] | None:
        """What the answer is kept under, or None if it must be made anew."""
        if environ["REQUEST_METHOD"] != "GET" or changes(copy / self.name) != self.changes:
            return None
        return tuple(environ.get(name, "") for name in KEY)

    def get(self, key: tuple[Any, ...]) -> Answer | None:
        """A kept answer."""
        found = self.kept.get(key)
        if found is None:
            return None
        self.kept[key] = self.kept.pop(key)
        return found[0], found[1], zlib.decompress(found[2])

    def keep(self, key: tuple[Any, ...], answer: Answer) -> None:
        """Keep an answer."""
        status, headers, body = answer
        if status.startswith("200"):
            self.kept[key] = (status, headers, zlib.compress(body, 1))
            while len(self.kept) > MAX_ANSWERS:
                self.kept.popitem(last=False)


def changes(file: Path) -> bytes:
    """How often a database was changed; b"" where there is none."""
    try:
        with file.open("rb") as opened:
            opened.seek(COUNTER_AT)
            return opened.read(COUNTER_BYTES)
    except FileNotFoundError:
        return b""


def whole(parts: Iterable[bytes]) -> bytes:
    """The body of an answer; closes it, as a server would."""
    try:
        return b"".join(parts)
    finally:
        if hasattr(parts, "close"):
            parts.close()
