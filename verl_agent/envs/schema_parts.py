"""Parts of a JSON Schema: the schemas inside of it, references and pointers to them, and changes at each place."""

from collections.abc import Iterator, Mapping
from typing import Any

VALUES = ("enum", "const", "default", "examples")
"""Keys of a schema with values, not with schemas."""
NAMED = ("properties", "$defs", "definitions", "patternProperties", "dependentSchemas")
"""Keys of a schema with schemas by their names."""


def parts(schema: Any) -> Iterator[Mapping[str, Any]]:
    """Yield a schema and the schemas inside of it."""
    if isinstance(schema, Mapping):
        yield schema
        for key, value in schema.items():
            named = key in NAMED and isinstance(value, Mapping)
            yield from parts([*value.values()] if named else None if key in VALUES else value)
    elif isinstance(schema, list):
        for value in schema:
            yield from parts(value)


def references(schema: Any) -> Iterator[str]:
    """Yield the references of a schema."""
    yield from (part["$ref"] for part in parts(schema) if isinstance(part.get("$ref"), str))


def pointer_to(pointer: str, name: str) -> str:
    """Return the pointer to a property of the schema at a pointer."""
    return f"{pointer}/properties/{name.replace('~', '~0').replace('/', '~1').replace('%', '%25')}"


def of_one_draft(schema: Any) -> Any:
    """Return a schema without `$schema` at any place, which would choose another validator."""
    if isinstance(schema, list):
        return [of_one_draft(one) for one in schema]
    if not isinstance(schema, Mapping):
        return schema
    return {
        key: {name: of_one_draft(inside) for name, inside in one.items()}
        if key in NAMED and isinstance(one, Mapping)
        else (one if key in VALUES else of_one_draft(one))
        for key, one in schema.items()
        if key != "$schema" or not isinstance(one, str)
    }


def tidy(schema: Any) -> Any:
    """Return a schema of pydantic without titles; objects with named properties allow no other ones."""
    if isinstance(schema, list):
        return [tidy(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {
        key: {name: tidy(one) for name, one in value.items()} if key in NAMED else tidy(value)
        for key, value in schema.items()
        if not (key == "title" and isinstance(value, str)) and key not in VALUES
    }
    kept |= {key: schema[key] for key in VALUES if key in schema}
    if "properties" in kept:
        kept.setdefault("additionalProperties", False)
    first = {key: kept.pop(key) for key in ("type", "description") if key in kept}
    return first | kept
