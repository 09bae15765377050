"""Values that fit a JSON Schema: a simple example, and random ones for checks."""

import random
from collections.abc import Mapping
from typing import Any

from verl_agent.envs.schema_parts import pointer_to
from verl_agent.envs.schemas import JsonSchema

FORMATS: Mapping[str, str] = {
    "date": "2026-01-31",
    "time": "12:30:00",
    "date-time": "2026-01-31T12:30:00Z",
    "duration": "PT1H",
    "uuid": "123e4567-e89b-12d3-a456-426614174000",
    "email": "ann@example.com",
    "uri": "https://example.com/",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
}
"""Text of each format of a string."""
TEXTS = (
    *("", " ", "a", " two words ", "größer", "打开门", "\U0001f600", "a\nb", "\t", "null", "3", "true", "{}", "[1]"),
    *('"quoted"', "it's", "a\\b", "{x}", "%s", "</tool_call>", "<think>", "Action: go", "x" * 300, "0\u2028\u00a0"),
)
"""Texts that change easily on their way."""
WHOLE = (0, 1, -1, 7, 10**6, 2**31, 2**53 + 1, -(2**63), 2**63 - 1)
NUMBERS = (0.0, 0.1, -2.5, 1e-9, 1e22, 3, 1 / 3)
MOST_NESTED = 5


def example(schema: JsonSchema, name: str = "") -> Any:
    """Return the simplest value of a schema; required properties only, and `<name>` for a text."""
    return _value(schema, "#", None, name, 0)


def sample(schema: JsonSchema, draws: random.Random) -> Any:
    """Return a random value of a schema; one that a pattern restricts may not fit."""
    return _value(schema, "#", draws, "", 0)


def _value(schema: JsonSchema, pointer: str, draws: random.Random | None, name: str, depth: int) -> Any:
    part = schema.at(pointer)
    if not isinstance(part, Mapping):
        return _text({}, draws, name)
    if "$ref" in part:
        return _value(schema, part["$ref"], draws, name, depth + 1)
    if "const" in part:
        return part["const"]
    if "enum" in part:
        return draws.choice(part["enum"]) if draws else part["enum"][0]
    for key in ("anyOf", "oneOf"):
        if key in part:
            branches = range(len(part[key]))
            simple = [n for n in branches if part[key][n].get("type") == "null"] if depth > MOST_NESTED else []
            chosen = simple[0] if simple else draws.choice(branches) if draws else 0
            return _value(schema, f"{pointer}/{key}/{chosen}", draws, name, depth + 1)
    kind = part.get("type", "object" if "properties" in part else "string")
    if isinstance(kind, list):
        kind = draws.choice(kind) if draws else kind[0]
    if kind == "array":
        return _list(schema, pointer, part, draws, name, depth)
    if kind == "object":
        return _object(schema, pointer, part, draws, depth)
    return _plain(part, kind, draws, name)


def _list(
    schema: JsonSchema, pointer: str, part: Mapping[str, Any], draws: random.Random | None, name: str, depth: int
) -> list[Any]:
    fixed = len(part.get("prefixItems", ()))
    least = max(part.get("minItems", 0), fixed)
    most = 0 if depth > MOST_NESTED else 3
    count = least if draws is None or fixed else draws.randint(least, max(least, min(most, part.get("maxItems", 3))))
    places = [f"{pointer}/prefixItems/{n}" if n < fixed else f"{pointer}/items" for n in range(count)]
    values = [_value(schema, place, draws, name, depth + 1) for place in places]
    return [one for at, one in enumerate(values) if one not in values[:at]] if part.get("uniqueItems") else values


def _object(
    schema: JsonSchema, pointer: str, part: Mapping[str, Any], draws: random.Random | None, depth: int
) -> dict[str, Any]:
    required = part.get("required", ())
    values = {}
    for key in part.get("properties", {}):
        if key in required or (draws is not None and depth <= MOST_NESTED and draws.random() < 0.5):
            values[key] = _value(schema, pointer_to(pointer, key), draws, key, depth + 1)
    more = part.get("additionalProperties")
    if draws is not None and isinstance(more, Mapping) and depth <= MOST_NESTED:
        for key in draws.sample(("x", "größe", "a b"), draws.randint(0, 2)):
            values[key] = _value(schema, f"{pointer}/additionalProperties", draws, key, depth + 1)
    return values


def _plain(part: Mapping[str, Any], kind: str, draws: random.Random | None, name: str) -> Any:
    if kind == "null":
        return None
    if kind == "boolean":
        return draws.random() < 0.5 if draws else True
    if kind in ("integer", "number"):
        least, most = _bounds(part, 1 if kind == "integer" else 1e-6)
        chosen: float = draws.choice(WHOLE if kind == "integer" else NUMBERS) if draws else 1
        chosen = min(max(chosen, least), most)
        step = part.get("multipleOf")
        if step:
            chosen = -(-least // step) * step if least > float("-inf") else 0
        return int(chosen) if kind == "integer" else chosen
    return _text(part, draws, name)


def _bounds(part: Mapping[str, Any], step: float) -> tuple[float, float]:
    least = part.get("minimum", part.get("exclusiveMinimum", float("-inf") - step) + step)
    return least, part.get("maximum", part.get("exclusiveMaximum", float("inf")) - step)


def _text(part: Mapping[str, Any], draws: random.Random | None, name: str) -> str:
    if part.get("format") in FORMATS:
        return FORMATS[part["format"]]
    text = draws.choice(TEXTS) if draws else f"<{name}>" if name else ""
    least: int = part.get("minLength", 0)
    most: int | None = part.get("maxLength")
    return (text + "x" * (least - len(text)))[:most]
