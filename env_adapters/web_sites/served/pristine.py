"""Cache of responses to unchanged copies, which are the same for all of these copies.

SQLite counts the changes of a file in its header (bytes 24 to 27, https://sqlite.org/fileformat.html). A copy with the
count of the initial file is unchanged. Most episodes only read, and many open the same pages.
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
"""Fields of a request that the response depends on, besides the state."""

Answer = tuple[str, list[tuple[str, str]], bytes]


class PristineAnswers:
    """Cache of the responses to GET requests, in files that all workers of a site share.

    A full cache is emptied. Create it before the workers are forked, because it starts with an empty folder.

    Args:
        seed: initial database file of copies.
        folder: folder of the cache files; it must contain no other files.
    """

    def __init__(self, seed: Path, folder: Path) -> None:
        self.name, self.changes, self.folder = seed.name, change_counter(seed), folder
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)

    def key(self, environ: dict[str, Any], copy: Path) -> tuple[Any, ...] | None:
        """Return the cache key of a request, or None if its response cannot be cached."""
        if environ["REQUEST_METHOD"] != "GET" or change_counter(copy / self.name) != self.changes:
            return None
        return tuple(environ.get(name, "") for name in KEY)

    def get(self, key: tuple[Any, ...]) -> Answer | None:
        """Return the cached response of a key, or None."""
        try:
            answer: Answer = pickle.loads(zlib.decompress(self.file(key).read_bytes()))
        except FileNotFoundError:
            return None
        return answer

    def keep(self, key: tuple[Any, ...], answer: Answer) -> None:
        """Cache a response if its status is 200."""
        if not answer[0].startswith("200"):
            return
        kept = list(self.folder.iterdir())
        if len(kept) >= MAX_ANSWERS:
            for file in kept:
                file.unlink(missing_ok=True)
        new = self.folder.parent / uuid.uuid4().hex  # outside the folder that other workers may empty
        new.write_bytes(zlib.compress(pickle.dumps(answer), 1))
        os.replace(new, self.file(key))

    def file(self, key: tuple[Any, ...]) -> Path:
        """Return the cache file of a key."""
        return self.folder / sha256(repr(key).encode()).hexdigest()


def change_counter(file: Path) -> bytes:
    """Return the change counter of a database file, or b"" if the file does not exist."""
    try:
        with file.open("rb") as opened:
            opened.seek(COUNTER_AT)
            return opened.read(COUNTER_BYTES)
    except FileNotFoundError:
        return b""


def whole(parts: Iterable[bytes]) -> bytes:
    """Return the complete body of a response and close it."""
    try:
        return b"".join(parts)
    finally:
        if hasattr(parts, "close"):
            parts.close()
