"""Removal of a key from texts of a server, which may repeat it in part."""

import re

SHORTEST = 6
"""Characters of a key in a row that are removed from a text."""

MAX_CHARS = 10_000
"""Characters of a text that are kept."""


def redact(text: str, key: str | None) -> str:
    """Return a text in which every word with a part of the key reads `***`, without the end of a very long text."""
    if not key:
        return text[:MAX_CHARS]
    size = min(SHORTEST, len(key))
    parts = "|".join(re.escape(key[start : start + size]) for start in range(len(key) - size + 1))
    return re.sub(rf"[^\s\"'`,;()\[\]{{}}]*(?:{parts})[^\s\"'`,;()\[\]{{}}]*", "***", text[:MAX_CHARS])
