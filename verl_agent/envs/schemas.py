"""JSON Schemas of arguments: their check, validation, and values that a model wrote as text."""

import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from functools import cached_property
from typing import Any
from urllib.parse import quote, unquote

from verl_agent.envs.schema_parts import of_one_draft, parts, pointer_to, references
from verl_agent.envs.strict_json import MAX_DEPTH, read_json
from verl_agent.errors import ConfigError

URI = "urn:verl-agent:tool"
EXACT = 2**53
"""Whole numbers up to this one are exact as floating-point numbers."""
NUMBER = re.compile(r"-?(?:0|[1-9]\d{0,4000})(?:\.\d{1,400})?(?:[eE][-+]?\d{1,3})?")
WORDS: Mapping[str, Any] = {"true": True, "True": True, "false": False, "False": False, "null": None, "None": None}
"""Constants as JSON and as Python write them; chat templates write both."""
UNIONS = ("anyOf", "oneOf")
MAX_BRANCHING = 6
"""Most references and unions inside of each other that an explanation follows."""


class JsonSchema:
    """Schema of draft 2020-12; references inside of it may be recursive, and none leads outside."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self.schema = schema
        self._validators: dict[str, Any] = {}

    def check(self, name: str) -> None:
        """Check that the schema is one, of an object, whose references can be followed.

        Raises:
            ConfigError: it is not.
        """
        from verl_agent.envs.schema_validator import check_draft

        check_draft(self.schema, name)
        if self.schema.get("type") != "object":
            raise ConfigError(f"{name}: parameters have the type {self.schema.get('type')!r}. Allowed: object.")
        for part in parts(self.schema):
            nested = part is not self.schema and isinstance(part.get("$id"), str) and any(references(part))
            key = "$id" if nested else "$dynamicRef"
            if nested or isinstance(part.get(key), str):
                raise ConfigError(
                    f"{name}: references by {key}={part[key]!r:.80} are not supported. Allowed: `$ref` from the root "
                    "of the schema, such as '#/$defs/NAME'."
                )
        for reference in references(self.schema):
            self._follow(reference, name)

    def _follow(self, reference: str, name: str) -> None:
        """Check that a reference ends at a schema, and not at itself."""
        seen: list[str] = []
        while True:
            if reference in seen:
                raise ConfigError(f"{name}: the reference {reference!r} leads back to itself. Let it end at a schema.")
            seen.append(reference)
            found = self.at(reference)
            if found is None:
                raise ConfigError(f"{name}: the reference {reference!r} leads to no part of the schema.")
            if not isinstance(found, Mapping) or "$ref" not in found:
                return
            reference = found["$ref"]

    def at(self, pointer: str) -> Any:
        """Return the part of the schema at a pointer such as `#/$defs/Spot`, or None."""
        if not re.match(r"#(/|$)", pointer):
            return None
        part: Any = self.schema
        for key in unquote(pointer).split("/")[1:]:
            key = key.replace("~1", "/").replace("~0", "~")
            try:
                part = part[int(key)] if isinstance(part, Sequence) else part[key]
            except (KeyError, IndexError, ValueError, TypeError):
                return None
        return part

    def along(self, path: Sequence[int | str]) -> list[Mapping[str, Any]]:
        """Return the parts of the schema for the value at a path: references followed, and one for each branch."""
        found = self._branches(self.schema)
        for part in path:
            inside: list[Any] = []
            for one in found:
                if isinstance(part, int):
                    fixed = one.get("prefixItems", ())
                    inside.append(fixed[part] if part < len(fixed) else one.get("items"))
                else:
                    inside.append(one.get("properties", {}).get(part, one.get("additionalProperties")))
            found = [branch for one in inside for branch in self._branches(one)]
        return found

    def _branches(self, schema: Any, depth: int = 0) -> list[Mapping[str, Any]]:
        if not isinstance(schema, Mapping) or depth > MAX_BRANCHING:
            return []
        if isinstance(schema.get("$ref"), str):
            return self._branches(self.at(schema["$ref"]), depth + 1)
        branches = [*schema.get("anyOf", ()), *schema.get("oneOf", ())]
        return [found for one in branches for found in self._branches(one, depth + 1)] if branches else [schema]

    def errors(self, value: Any) -> Iterator[Any]:
        """Yield the errors of a value, as jsonschema describes them; patterns that take too long are one."""
        from verl_agent.envs.schema_validator import errors_in_time

        yield from errors_in_time(self._validator("#"), value)

    def _fits(self, value: Any, pointer: str) -> bool:
        from verl_agent.envs.schema_validator import fits_in_time

        return fits_in_time(self._validator(pointer), value)

    @cached_property
    def _formats(self) -> Any:
        from verl_agent.envs.schema_validator import Formats

        return Formats()

    def _validator(self, pointer: str) -> Any:
        if pointer not in self._validators:
            from verl_agent.envs.schema_validator import SchemaValidator

            schema = of_one_draft(self.at(pointer))
            if self._refers or schema is None:  # it takes longer, and is needed only where references are followed
                schema = {"$ref": URI + quote(pointer, safe="#/~$!'()*+,;=:@%")}
            self._validators[pointer] = SchemaValidator(schema, registry=self._registry, format_checker=self._formats)
        return self._validators[pointer]

    @cached_property
    def _refers(self) -> bool:
        return any(True for _ in references(self.schema))

    @cached_property
    def _registry(self) -> Any:
        """The schema by its URI; nothing is fetched."""
        from referencing import Registry
        from referencing.jsonschema import DRAFT202012

        contents = {key: value for key, value in of_one_draft(self.schema).items() if key != "$id"}
        return Registry().with_resource(URI, DRAFT202012.create_resource(contents))

    def read(self, value: Any) -> tuple[Any, int]:
        """Return a value in which texts of numbers, constants, lists and objects are these, where the schema asks.

        Only what keeps every digit is read: `"3"` is 3 for an integer, and `3.0` is 3. A text that the schema allows
        stays a text.

        Returns:
            The value and the number of texts that were read.
        """
        self._formats.restart()
        return self._read(value, "#", 0)

    def _read(self, value: Any, pointer: str, depth: int) -> tuple[Any, int]:
        schema = self.at(pointer)
        if depth > MAX_DEPTH or not isinstance(schema, Mapping):
            return value, 0
        if "$ref" in schema:
            return self._read(value, schema["$ref"], depth + 1)
        if isinstance(value, str):
            return self._read_text(value, pointer)
        for key in UNIONS:
            if key in schema:
                return self._read_branch(value, f"{pointer}/{key}", len(schema[key]), depth)
        if isinstance(value, float) and schema.get("type") == "integer" and value.is_integer() and abs(value) <= EXACT:
            return int(value), 1
        if isinstance(value, Mapping):
            read = {key: self._read(one, self._property(schema, pointer, key), depth + 1) for key, one in value.items()}
            return {key: one for key, (one, _) in read.items()}, sum(count for _, count in read.values())
        if isinstance(value, list):
            fixed = len(schema.get("prefixItems", ()))
            places = [f"{pointer}/prefixItems/{n}" if n < fixed else f"{pointer}/items" for n in range(len(value))]
            items = [self._read(one, place, depth + 1) for one, place in zip(value, places, strict=True)]
            return [one for one, _ in items], sum(count for _, count in items)
        return value, 0

    def _read_branch(self, value: Any, pointer: str, branches: int, depth: int) -> tuple[Any, int]:
        """Return the value as the branch reads it that fits with the fewest changes; without one, as the first does."""
        read = [self._read(value, f"{pointer}/{number}", depth + 1) for number in range(branches)]
        fitting = [one for number, one in enumerate(read) if self._fits(one[0], f"{pointer}/{number}")]
        return min(fitting or [one for one in read if one[1]] or [(value, 0)], key=lambda one: one[1])

    def _read_text(self, text: str, pointer: str) -> tuple[Any, int]:
        if self._kinds(pointer) == {"string"} or self._fits(text, pointer):
            return text, 0
        for value in text_values(text):
            read, _ = self._read(value, pointer, 1)
            if self._fits(read, pointer):
                return read, 1
            if isinstance(read, list | Mapping) and self._kinds(pointer).isdisjoint(("string", "")):
                return read, 1  # so that an error names the part that is wrong
        return text, 0

    def _kinds(self, pointer: str) -> set[str]:
        """Return the types that a part of the schema allows; "" for any."""
        kinds: set[str] = set()
        for one in self._branches(self.at(pointer)):
            found = one.get("type", "")
            kinds.update(found if isinstance(found, list) else [found])
        return kinds

    def allows(self, value: Any, part: Mapping[str, Any]) -> bool:
        """Return True if a part of the schema allows a value."""
        rest = {key: one for key, one in self.schema.items() if key == "$defs"}
        return JsonSchema({**rest, **part})._fits(value, "#")

    @staticmethod
    def _property(schema: Mapping[str, Any], pointer: str, key: str) -> str:
        return pointer_to(pointer, key) if key in schema.get("properties", {}) else f"{pointer}/additionalProperties"

    def changed(self, value: Any, pointer: str = "#", path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
        """Yield the paths of values that would change where the schema asks for another type.

        These are whole numbers that a floating-point number would cut, and `true` where only 1 is listed.
        """
        schema = self.at(pointer)
        if not isinstance(schema, Mapping) or len(path) > MAX_DEPTH:
            return
        if "$ref" in schema:
            yield from self.changed(value, schema["$ref"], path)
        elif isinstance(value, Mapping | list) and (key := next((one for one in UNIONS if one in schema), "")):
            kind = "array" if isinstance(value, list) else "object"
            branches = [f"{pointer}/{key}/{number}" for number in range(len(schema[key]))]
            found = [list(self.changed(value, one, path)) for one in branches if self._kinds(one) & {kind, ""}]
            yield from min(found, key=len, default=[])
        elif isinstance(value, Mapping):
            for key, one in value.items():
                yield from self.changed(one, self._property(schema, pointer, key), (*path, key))
        elif isinstance(value, list):
            for number, one in enumerate(value):
                yield from self.changed(one, f"{pointer}/items", (*path, number))
        elif isinstance(value, bool):
            listed = [one for one in self._branches(schema) if "enum" in one or "const" in one]
            if listed and not self._fits(value, pointer):
                yield path
        elif isinstance(value, int) and not isinstance(value, bool) and abs(value) > EXACT:
            kinds = [one.get("type") for one in (schema, *schema.get("anyOf", ()))]
            if "number" in kinds and "integer" not in kinds and not _is_exact(value):
                yield path


def _is_exact(number: int) -> bool:
    try:
        return int(float(number)) == number
    except OverflowError:
        return False


def text_values(text: str) -> Iterator[Any]:
    """Yield the JSON values, other than texts, that a text states without loss."""
    bare = text.strip()
    if bare in WORDS:
        yield WORDS[bare]
    elif NUMBER.fullmatch(bare):
        if bare.lstrip("-").isdigit():
            yield int(bare)
        else:
            number = float(bare)
            if Decimal(repr(number)) == Decimal(bare):
                yield number
    elif bare[:1] in ("[", "{"):
        try:
            yield read_json(bare)
        except ValueError:
            return
