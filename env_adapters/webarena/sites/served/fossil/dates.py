"""Dates in place of Fossil's ages, such as `3.2 days`, with which a page would change from hour to hour."""

import re
import time
from datetime import UTC, datetime

AGE = rb"(?:current|[\d.]+ (?:seconds|minutes|hours|days|years))</td>"
SINCE_NOW = re.compile(rb"<td data-sortkey='([0-9a-f]{8})'>" + AGE)
"""In the list of projects; the key is the age in seconds, and becomes the date."""
MOMENT = re.compile(rb'(<td data-sortkey="([0-9a-f]{16})">)' + AGE)
"""In the lists of wiki pages and branches; the key is the moment, in seconds of Julian days."""
TITLED = re.compile(rb'(<tr class="[^"]*" title="(\d{4}-\d\d-\d\d)[^"]*">\s*<td>)' + AGE)
"""In the history of a wiki page."""
DURATION = re.compile(rb"<tr><th>Duration&nbsp;Of&nbsp;Project:</th>.*?</tr>", re.DOTALL)
"""In the statistics; nothing there says since when."""
EPOCH_S = 210_866_760_000
"""1970-01-01 in seconds of Julian days."""


def dated(page: bytes, now: float | None = None) -> bytes:
    """A page of Fossil with dates for ages. What is compared within a project, as in its files, has no need of it.

    Args:
        page: HTML.
        now: when it was made, seconds since the epoch; None for the present moment.
    """
    made = time.time() if now is None else now
    page = SINCE_NOW.sub(lambda found: b"<td data-sortkey='%s'>%s</td>" % ((day(made - int(found[1], 16)),) * 2), page)
    page = MOMENT.sub(lambda found: b"%s%s</td>" % (found[1], day(int(found[2], 16) - EPOCH_S)), page)
    page = TITLED.sub(lambda found: b"%s%s</td>" % (found[1], found[2]), page)
    return DURATION.sub(b"", page)


def day(moment: float) -> bytes:
    """The date of a moment in seconds since the epoch, in UTC."""
    return f"{datetime.fromtimestamp(moment, UTC):%Y-%m-%d}".encode()
