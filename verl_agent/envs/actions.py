"""Read an action out of a model's reply, and quote replies without quoting a megabyte."""

import re

MARKER = re.compile(r"\baction\s*:", re.IGNORECASE)


def last_action(reply: str) -> str | None:
    r"""The first line of text after the last `Action:`, or None if there is none.

    Upper and lower case, Markdown emphasis and code fences around the action do not matter.

    Example:
        >>> last_action("Thought: wood first.\nAction: get 1 oak log")
        'get 1 oak log'
    """
    start = None
    for found in MARKER.finditer(reply):
        start = found.end()
    if start is None:
        return None
    for line in reply[start:].splitlines():
        text = line.strip()
        if re.fullmatch(r"```\w+", text):  # opens a fence and names a language
            continue
        text = text.strip("`* \t")
        if text:
            return text
    return None


def shorten(text: str, limit: int = 100) -> str:
    """`text`, cut to at most `limit` characters; the cut shows as an ellipsis."""
    return text if len(text) <= limit else text[: limit - 1] + "…"
