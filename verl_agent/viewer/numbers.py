"""Whole numbers in the URLs of the viewer."""

from verl_agent.errors import ConfigError

LARGEST = 10**15 - 1
"""Largest number that a URL may have: SQLite holds it, also times the rows of a page."""


def whole_number(name: str, value: str, least: int = 0) -> int:
    """Return the number in a part of a URL.

    Args:
        name: name of the part, for the message.
        value: text of the part.
        least: smallest number that is allowed.

    Raises:
        ConfigError: the text is not a whole number from `least` to `LARGEST`.
    """
    if value.isascii() and value.isdecimal() and len(value) <= len(str(LARGEST)) and int(value) >= least:
        return int(value)
    shown = value if len(value) <= 40 else f"{value[:40]}..."
    raise ConfigError(f"{name}={shown!r} is not allowed. Allowed: whole numbers from {least} to {LARGEST}.")
