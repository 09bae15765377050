"""Validator of JSON Schemas, draft 2020-12, whose patterns have a time limit: a text can let one backtrack for ever."""

import json
import re
import time
from collections.abc import Iterator, Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Any

import regex
from jsonschema import Draft202012Validator, FormatChecker
from jsonschema.exceptions import SchemaError, ValidationError
from jsonschema.validators import extend
from referencing.exceptions import Unresolvable

from verl_agent.errors import ConfigError

DRAFT = "https://json-schema.org/draft/2020-12/schema"
PATTERN_S = 1.0
"""Seconds of the processor for all patterns of one check. The engine looks at its clock about once a second."""
_NOT_END = re.compile(r"(\\.|\[\^?\]?(?:\\.|[^\]\\])*\])|\$", re.DOTALL)
"""Parts of a pattern in which `$` is a character (group 1), and `$` elsewhere."""


class PatternTimeoutError(Exception):
    """The patterns of a check take too long."""


UNCHECKED = (PatternTimeoutError, Unresolvable, RecursionError, ArithmeticError)
"""Exceptions of a check without a result, whose value is refused."""


class Formats(FormatChecker):
    """Formats of the draft, and the time that is left for the patterns of a check."""

    def __init__(self) -> None:
        super().__init__(())
        refused = (regex.error, RecursionError, OverflowError)
        self.checkers = {**Draft202012Validator.FORMAT_CHECKER.checkers, "regex": (_is_pattern, refused)}
        self.restart()

    def restart(self) -> None:
        """Give the next check all of the time."""
        self.left_s = PATTERN_S

    def search(self, pattern: str, text: str) -> bool:
        """Return True if a pattern matches some part of a text.

        Raises:
            PatternTimeoutError: no time is left.
        """
        started = time.thread_time()  # a process that waits for the processor loses no time
        try:
            if self.left_s <= 0:
                raise TimeoutError
            return regex.search(_translated(pattern), text, timeout=self.left_s) is not None
        except TimeoutError as error:
            raise PatternTimeoutError(f"{text[:60]!r} takes too long to compare with {pattern[:60]!r}") from error
        finally:
            self.left_s -= time.thread_time() - started


def _translated(pattern: str) -> str:
    """Return a pattern in which `$` is the end alone, as in ECMA-262, and not a last line break, too."""
    return _NOT_END.sub(lambda found: found[1] or r"\Z", pattern)


def _is_pattern(value: object) -> bool:
    return not isinstance(value, str) or bool(regex.compile(_translated(value)))


def _pattern(validator: Any, pattern: str, value: Any, schema: Mapping[str, Any]) -> Iterator[ValidationError]:
    if isinstance(value, str) and not validator.format_checker.search(pattern, value):
        yield ValidationError(f"{value!r} does not match {pattern!r}")


def _pattern_properties(validator: Any, patterns: Mapping[str, Any], value: Any, schema: Any) -> Iterator[Any]:
    for pattern, inside in patterns.items() if isinstance(value, dict) else ():
        for name, one in value.items():
            if validator.format_checker.search(pattern, name):
                yield from validator.descend(one, inside, path=name, schema_path=pattern)


def _additional_properties(validator: Any, allowed: Any, value: Any, schema: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the errors of the keyword of jsonschema, without the names that a pattern allows."""
    patterns, search = schema.get("patternProperties", {}), validator.format_checker.search
    rest = {key: one for key, one in schema.items() if key != "patternProperties"}
    if isinstance(value, dict):
        value = {name: one for name, one in value.items() if not any(search(pattern, name) for pattern in patterns)}
    yield from Draft202012Validator.VALIDATORS["additionalProperties"](validator, allowed, value, rest)


def _multiple_of(validator: Any, step: Any, value: Any, schema: Mapping[str, Any]) -> Iterator[ValidationError]:
    """Yield the error of a number that is no multiple, as both are written: 0.07 is one of 0.01."""
    if validator.is_type(value, "number") and _as_written(value) % _as_written(step):
        yield ValidationError(f"{value!r} is not a multiple of {step}")


def _as_written(number: float) -> Fraction:
    return Fraction(number if isinstance(number, int) else Decimal(repr(number)))


SchemaValidator = extend(
    Draft202012Validator,
    {
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "additionalProperties": _additional_properties,
        "multipleOf": _multiple_of,
    },
)


def check_draft(schema: Any, name: str) -> None:
    """Check that a value is a schema of the draft.

    Raises:
        ConfigError: it is not one, or it has a keyword whose patterns have no time limit.
    """
    if not isinstance(schema, Mapping):
        raise ConfigError(f"{name}: parameters={schema!r:.100} is no JSON Schema. Allowed: an object.")
    try:
        json.dumps(schema, allow_nan=False)
        Draft202012Validator.check_schema(dict(schema), format_checker=Formats())
    except SchemaError as error:
        other = schema.get("$schema", DRAFT)
        remedy = "" if str(other).startswith(DRAFT) else f" It names {other!r:.80}; convert it to draft 2020-12."
        raise ConfigError(
            f"{name}: parameters are no JSON Schema: {error.message:.200} at {error.json_path}.{remedy}"
        ) from error
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"{name}: parameters are no JSON: {error}.") from error
    if all(f'"{key}": ' in json.dumps(schema) for key in ("patternProperties", "unevaluatedProperties")):
        raise ConfigError(f"{name}: unevaluatedProperties beside patternProperties. Use additionalProperties.")


def errors_in_time(validator: Any, value: Any) -> Iterator[Any]:
    """Yield the errors of a value; one that cannot be checked, such as by patterns that take too long, is one."""
    validator.format_checker.restart()
    try:
        yield from validator.iter_errors(value)
    except UNCHECKED as error:
        yield ValidationError(str(error), instance=value, schema=validator.schema)


def fits_in_time(validator: Any, value: Any) -> bool:
    """Return True if a value has no error, found with the time that is left."""
    try:
        return bool(validator.is_valid(value))
    except UNCHECKED:
        return False
