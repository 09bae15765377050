"""Values of JSON that other programs wrote. Each function raises RefusedError for one that is not allowed."""

import json
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar

Json = Mapping[str, Any]
T = TypeVar("T", dict[str, Any], list[Any], str, int)
TYPES: Mapping[type, str] = {dict: "an object", list: "a list", str: "text", int: "a whole number"}


class RefusedError(Exception):
    """An episode cannot be a record.

    Attributes:
        kind: reason in few words, under which the import counts it.
    """

    def __init__(self, kind: str, detail: str = "") -> None:
        super().__init__(f"{kind}: {detail}" if detail else kind)
        self.kind = kind


def shown(value: Any) -> str:
    """Return the start of a value as JSON, for messages."""
    text = json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= 80 else f"{text[:77]}..."


def required(value: Any, name: str, kind: type[T]) -> T:
    """Return a field of an object. One that is missing, null or of another type is refused."""
    if isinstance(value, dict) and value.get(name) is None:
        raise RefusedError(f"no {name}", f"{shown(value)}. If the file has another format, set --as")
    return optional(value, name, kind)


def optional(value: Any, name: str, kind: type[T]) -> T:
    """Return a field of an object, and an empty value for one that is missing or null."""
    if not isinstance(value, dict):
        raise RefusedError("a value that is no object", f"{shown(value)}, where an object with {name!r} is allowed")
    found = value.get(name)
    if found is None:
        return kind()
    if not isinstance(found, kind) or isinstance(found, bool):
        raise RefusedError(f"{name} that is not {TYPES[kind]}", f"found {shown(found)}")
    return found


def text_or_none(value: Any, name: str) -> str | None:
    """Return the name of something: a text, or a whole number as text; None for null. An empty text is refused."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, str | int) or not str(value).strip():
        raise RefusedError(f"{name} that is no name", f"found {shown(value)}. Allowed: text, a whole number or null")
    return str(value)


def number_or_none(value: Any, name: str = "reward") -> float | None:
    """Return a finite number, 1 for true and 0 for false; None for null."""
    if value is None:
        return None
    try:
        number = float(value) if isinstance(value, int | float) else math.nan
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise RefusedError(
            f"{name} that is no finite number", f"found {shown(value)}. Allowed: a number, true or false"
        )
    return number


def time_or_none(value: Any, name: str) -> datetime | None:
    """Return a time that is given in ISO 8601 or in seconds since 1970; None for null. UTC where no zone is given."""
    if value is None:
        return None
    try:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return datetime.fromtimestamp(value, UTC)
        found = datetime.fromisoformat(value)
    except (TypeError, ValueError, OverflowError, OSError) as error:
        raise RefusedError(f"{name} that is no time", f"found {shown(value)}. Allowed: ISO 8601") from error
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
