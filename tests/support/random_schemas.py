"""Random JSON Schemas and values that fit them, for properties of function calls."""

import random
from typing import Any

FIXED = (
    "",
    " ",
    "\n",
    " Bob at noon ",
    "größer",
    "打开门",
    "\U0001f600",
    "{}",
    "3",
    "true",
    "null",
    "</parameter>",
    "</think>",
)
CHARACTERS = "ab 0\n\t\"'\\{}[]<>/é漢\u2028\x00\x7f"


def random_text(draws: random.Random) -> str:
    if draws.random() < 0.3:
        return draws.choice(FIXED)
    if draws.random() < 0.2:
        points = (draws.choice((draws.randrange(0xD800), draws.randrange(0xE000, 0x110000))) for _ in range(5))
        return "".join(map(chr, points))
    return "".join(draws.choices(CHARACTERS, k=draws.randrange(20)))


def random_schema(draws: random.Random, depth: int = 0) -> dict[str, Any]:
    kinds = ["string", "integer", "number", "boolean", "null", "enum"]
    if depth < 3:
        kinds += ["array", "object", "union", "any"]
    kind = draws.choice(kinds)
    if kind == "enum":
        return {"enum": [random_text(draws) for _ in range(draws.randint(1, 3))]}
    if kind == "any":
        return {}
    if kind == "array":
        return {"type": "array", "items": random_schema(draws, depth + 1)}
    if kind == "object":
        return random_object(draws, depth + 1)
    if kind == "union":
        return {"anyOf": [random_schema(draws, depth + 1), random_schema(draws, depth + 1)]}
    return {"type": kind}


def random_object(draws: random.Random, depth: int = 0) -> dict[str, Any]:
    names = draws.sample(["a", "b c", "größe", "x/y", "~", "$ref2", "type", "name", "arguments"], draws.randint(0, 4))
    required = [name for name in names if draws.random() < 0.5]
    properties = {name: random_schema(draws, depth) for name in names}
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def random_value(schema: dict[str, Any], draws: random.Random) -> Any:
    if "enum" in schema:
        return draws.choice(schema["enum"])
    if "anyOf" in schema:
        return random_value(draws.choice(schema["anyOf"]), draws)
    kind = schema.get("type") or draws.choice(["string", "integer", "boolean", "null"])
    if kind == "string":
        return random_text(draws)
    if kind == "integer":
        return draws.choice((draws.randint(-9, 9), draws.randint(-(2**63), 2**64)))
    if kind == "number":
        return draws.choice((draws.uniform(-10, 10), draws.randint(-(2**60), 2**60), 1e300 * draws.random(), 0.0))
    if kind == "boolean":
        return draws.random() < 0.5
    if kind == "array":
        return [random_value(schema["items"], draws) for _ in range(draws.randrange(4))]
    if kind == "object":
        properties, required = schema["properties"], schema["required"]
        chosen = [name for name in properties if name in required or draws.random() < 0.5]
        return {name: random_value(properties[name], draws) for name in chosen}
    return None
