"""Reading of JSON without loss: what could not be written again as it was is refused, with the reason."""

import json
from typing import Any

MAX_DEPTH = 64
"""Deepest nesting of a value."""
MAX_DIGITS = 4300
"""Most digits of a whole number; Python reads no more."""


def read_json(text: str) -> Any:
    """Return the value of a JSON text that Python's `json` would read without loss.

    Raises:
        ValueError: the text is no JSON, repeats a key, has a number beyond the range of one, half a character, or is
            nested too deeply. The message says where, if it is known.
    """
    try:
        value = DECODER.decode(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    check_value(value)
    return value


def check_value(value: Any) -> None:
    """Check that a decoded value can be written again.

    Raises:
        ValueError: it is nested too deeply, or has half a character.
    """
    level = [value]
    for _ in range(MAX_DEPTH):
        texts = [one for one in level if isinstance(one, str)]
        texts += [key for one in level if isinstance(one, dict) for key in one]
        for text in texts:
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise ValueError(f"it has half a character, {text[error.start : error.end]!r}") from error
        parts = (one.values() if isinstance(one, dict) else one for one in level if isinstance(one, dict | list))
        level = [one for part in parts for one in part]
        if not level:
            return
    raise ValueError(f"it is nested more than {MAX_DEPTH} levels deep")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key!r:.100} occurs twice")
        found[key] = value
    return found


def _finite(text: str) -> float:
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise ValueError(f"the number {text:.40} is too large")
    return number


def _whole(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise ValueError(f"the number {text:.40}... has more than {MAX_DIGITS} digits")
    return int(text)


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is no JSON")


DECODER = json.JSONDecoder(
    object_pairs_hook=_unique, parse_float=_finite, parse_int=_whole, parse_constant=_no_constant
)
"""Decoder that refuses what would change when it is written again."""


def read_json_at(text: str, start: int) -> tuple[Any, int]:
    """Return the JSON value that begins at a place of a text, and the place after it.

    Raises:
        ValueError: see `read_json`.
    """
    try:
        value, end = DECODER.raw_decode(text, start)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    check_value(value)
    return value, end
