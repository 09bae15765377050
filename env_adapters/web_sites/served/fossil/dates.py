"""Replacement of Fossil's ages (for example, `3.2 days`) by dates, so that a page does not change over time."""

import re
import time
from datetime import UTC, datetime

AGE = rb"(?:current|[\d.]+ (?:seconds|minutes|hours|days|years))</td>"
SINCE_NOW = re.compile(rb"<td data-sortkey='([0-9a-f]{8})'>" + AGE)
"""Age in the list of projects; the key is the age in seconds and is replaced too."""
MOMENT = re.compile(rb'(<td data-sortkey="([0-9a-f]{16})">)' + AGE)
"""Age in the lists of wiki pages and branches; the key is the time in seconds of Julian days."""
TITLED = re.compile(rb'(<tr class="[^"]*" title="(\d{4}-\d\d-\d\d)[^"]*">\s*<td>)' + AGE)
"""Age in the history of a wiki page."""
DURATION = re.compile(rb"<tr><th>Duration&nbsp;Of&nbsp;Project:</th>.*?</tr>", re.DOTALL)
"""Age of the project in the statistics; it is removed, because the page has no date to replace it."""
EPOCH_S = 210_866_760_000
"""1970-01-01 in seconds of Julian days."""


def dated(page: bytes, now: float | None = None) -> bytes:
    """Return a page of Fossil with dates instead of ages.

    Args:
        page: HTML of the page.
        now: time at which the page was generated, in seconds since the epoch; None for the current time.
    """
    generated = time.time() if now is None else now
    page = SINCE_NOW.sub(
        lambda match: b"<td data-sortkey='%s'>%s</td>" % ((day(generated - int(match[1], 16)),) * 2), page
    )
    page = MOMENT.sub(lambda match: b"%s%s</td>" % (match[1], day(int(match[2], 16) - EPOCH_S)), page)
    page = TITLED.sub(lambda match: b"%s%s</td>" % (match[1], match[2]), page)
    return DURATION.sub(b"", page)


def day(moment: float) -> bytes:
    """Return the UTC date of a time in seconds since the epoch."""
    return f"{datetime.fromtimestamp(moment, UTC):%Y-%m-%d}".encode()
