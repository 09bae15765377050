"""Durations and distances in free text, in a form in which equal ones are equal: `1h 35min`, `95 minutes`, `5700 s`."""

import re
from collections.abc import Mapping
from decimal import Decimal

SECONDS: Mapping[str, str] = {
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), "3600"),
    **dict.fromkeys(("min", "mins", "minute", "minutes"), "60"),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), "1"),
    **dict.fromkeys(("day", "days"), "86400"),
}
"""Length of each unit of time in seconds."""
METRES: Mapping[str, str] = {
    **dict.fromkeys(("km", "kms", "kilometer", "kilometers", "kilometre", "kilometres"), "1000"),
    **dict.fromkeys(("m", "meter", "meters", "metre", "metres"), "1"),
    **dict.fromkeys(("mi", "mile", "miles"), "1609.344"),
    **dict.fromkeys(("ft", "foot", "feet"), "0.3048"),
}
"""Length of each unit of distance in metres."""
NUMBER = r"(?<![\w.,])(?P<number>\d+(?:,\d{3})*(?:\.\d+)?)"
UNITS = "|".join(sorted({*SECONDS, *METRES}, key=len, reverse=True))
QUANTITY = re.compile(rf"{NUMBER}[\s-]?(?P<unit>{UNITS})(?![a-z])", re.IGNORECASE)
GLUED = re.compile(rf"(\d(?:{'|'.join(SECONDS)}))(?=\d)", re.IGNORECASE)
"""Place between two parts of a duration without a space, as in `1h35min`."""
SHORT_MINUTES = re.compile(
    r"(\d\s?(?:h|hrs?|hours?)\s*(?:and\s+)?[0-5]?\d)(?:\s?m(?![a-z])|(?=\s*(?:$|[,;.)](?!\d))))", re.IGNORECASE
)
"""Hours and minutes whose unit is `m` or missing, as in `2h 58m` and `1h 35`."""
JOINT = re.compile(r"[\s,]*(?:and\s+)?", re.IGNORECASE)
"""Text between two parts of a duration."""


def with_base_units(text: str) -> str:
    """Return a text in which every duration is in seconds, and every distance in metres.

    Example:
        >>> with_base_units("1h 35min by car, or 2.4 kilometers")
        '5700s by car, or 2400m'
    """
    text = GLUED.sub(r"\1 ", SHORT_MINUTES.sub(r"\1min", text))
    parts: list[str] = []
    seconds, smallest, end = Decimal(0), Decimal(0), 0
    for match in QUANTITY.finditer(text):
        number, unit = Decimal(match["number"].replace(",", "")), match["unit"].lower()
        between = text[end : match.start()]
        scale = Decimal(SECONDS.get(unit, "0"))
        if not (smallest and 0 < scale < smallest and JOINT.fullmatch(between)):
            parts += [f"{_plain(seconds)}s"] if smallest else []
            parts.append(between)
            seconds, smallest = Decimal(0), Decimal(0)
        if scale:
            seconds, smallest = seconds + number * scale, scale
        else:
            parts.append(f"{_plain(number * Decimal(METRES[unit]))}m")
        end = match.end()
    parts += [f"{_plain(seconds)}s"] if smallest else []
    return "".join([*parts, text[end:]])


def _plain(number: Decimal) -> str:
    return f"{number.normalize():f}"
