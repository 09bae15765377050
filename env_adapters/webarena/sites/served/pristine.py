"""Answers that are kept for copies in which nothing has changed yet, since they are the same in all of these.

SQLite counts the changes of a file in its header (bytes 24 to 27, https://sqlite.org/fileformat.html); a copy with the
count of the seed file is as it was made. Most episodes only read, and many open the same pages.
"""

import os
import pickle
import shutil
import uuid
import zlib
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from typing import Any

COUNTER_AT, COUNTER_BYTES = 24, 4
MAX_ANSWERS = 2000
KEY = ("HTTP_HOST", "PATH_INFO", "QUERY_STRING", "HTTP_COOKIE")
"""What an answer depends on, besides the state."""

Answer = tuple[str, list[tuple[str, str]], bytes]


class PristineAnswers:
    """The answers to GET requests, in files that all workers of a site share; all are dropped when there are too many.

    Made once, before the workers are forked, since it begins with an empty folder.

    Args:
        seed: database file that copies begin with.
        folder: for the files, and nothing else.
    """

    def __init__(self, seed: Path, folder: Path) -> None:
        self.name, self.changes, self.folder = seed.name, changes(seed), folder
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)

    def key(self, environ: dict[str, Any], copy: Path) -> tuple[Any, ...] | None:
        """What the answer is kept under, or None if it must be made anew."""
        if environ["REQUEST_METHOD"] != "GET" or changes(copy / self.name) != self.changes:
            return None
        return tuple(environ.get(name, "") for name in KEY)

    def get(self, key: tuple[Any, ...]) -> Answer | None:
        """A kept answer."""
        try:
            found: Answer = pickle.loads(zlib.decompress(self.file(key).read_bytes()))
        except FileNotFoundError:
            return None
        return found

    def keep(self, key: tuple[Any, ...], answer: Answer) -> None:
        """Keep an answer."""
        if not answer[0].startswith("200"):
            return
        kept = list(self.folder.iterdir())
        if len(kept) >= MAX_ANSWERS:
            for file in kept:
                file.unlink(missing_ok=True)
        new = self.folder.parent / uuid.uuid4().hex  # where no other worker drops it as a kept answer
        new.write_bytes(zlib.compress(pickle.dumps(answer), 1))
        os.replace(new, self.file(key))

    def file(self, key: tuple[Any, ...]) -> Path:
        """Where the answer of a key lies."""
        return self.folder / sha256(repr(key).encode()).hexdigest()


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
