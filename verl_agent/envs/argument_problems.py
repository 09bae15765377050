"""Problems of the arguments of a call, as pydantic and jsonschema find them, with their places and what is allowed."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from verl_agent.envs.call_error import MISSING, UNKNOWN, WRONG
from verl_agent.envs.parsing import shorten
from verl_agent.envs.tools import Tool
from verl_agent.errors import did_you_mean

if TYPE_CHECKING:  # imported where arguments are checked
    from pydantic import ValidationError

TOO_LONG = "has more digits than a floating-point number keeps. Allowed: a shorter number."
MISSING_TYPES = ("missing", "missing_argument", "missing_keyword_only_argument")
BOUNDS = (
    *("format", "pattern", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength"),
    *("maxLength", "minItems", "maxItems", "uniqueItems", "const"),
)
"""Keys of a schema that an explanation repeats."""
UNKNOWN_TYPES = ("unexpected_keyword_argument", "extra_forbidden")


@dataclass(frozen=True, slots=True)
class Problem:
    """Mistake at one place of the arguments, for the model.

    Attributes:
        kind: kind of the error of a call.
        path: place, such as `spot.rows[2]`.
        text: explanation for the model.
    """

    kind: str
    path: str
    text: str


def validated(tool: Tool, found: Mapping[str, Any]) -> tuple[Mapping[str, Any] | None, list[Problem]]:
    """Return the arguments of the function, and the problems of pydantic or, without a function, of jsonschema."""
    from pydantic import ValidationError

    if tool.adapter is None:
        return None, [_of_jsonschema(tool, error) for error in tool.schema_of_arguments.errors(found)]
    changed = [_changed(tool, found, path) for path in tool.schema_of_arguments.changed(found)]
    try:
        extra: Literal["forbid"] | None = None if _allows_more(tool.parameters) else "forbid"
        text = json.dumps(found, ensure_ascii=False)
        return tool.adapter.validate_json(text, strict=True, extra=extra), changed
    except ValidationError as error:
        return None, [*_of_pydantic(tool, found, error), *changed]


def _of_pydantic(tool: Tool, found: Mapping[str, Any], error: "ValidationError") -> list[Problem]:
    """Return one problem for each place; of a union those of the closest branch, or one for all branches."""
    mistakes: dict[tuple[int | str, ...], list[_Mistake]] = {}
    for one in _of_closest([_Mistake.of(found, one) for one in error.errors(include_url=False, include_context=False)]):
        mistakes.setdefault(one.path, []).append(one)
    made = []
    for path, several in mistakes.items():
        first, texts = several[0], dict.fromkeys(one.text for one in several)
        branch = tool.parameters.get("$defs", {}).get(first.branch, {}) if first.branch else {}
        known = list(branch["properties"]) if first.kind == UNKNOWN and "properties" in branch else None
        made.append(_problem(tool, first.kind, path, first.value, "; or: ".join(texts), known))
    return made


@dataclass(frozen=True, slots=True)
class _Mistake:
    """Mistake in the arguments, as pydantic reports it.

    Attributes:
        path: path of the value in the arguments.
        union: path of the first union on the way, and `branch` the name of its branch; None without one.
        names: True if the value is not a listed one, which tells branches apart.
    """

    kind: str
    path: tuple[int | str, ...]
    value: Any
    text: str
    union: tuple[int | str, ...] | None
    branch: int | str | None
    names: bool

    @classmethod
    def of(cls, found: Any, error: Any) -> "_Mistake":
        kind = MISSING if error["type"] in MISSING_TYPES else UNKNOWN if error["type"] in UNKNOWN_TYPES else WRONG
        path, value = _path(found, error["loc"], kind == MISSING)
        text = error["msg"][:1].lower() + error["msg"][1:]
        same = next((n for n, (a, b) in enumerate(zip(path, error["loc"], strict=False)) if a != b), len(path))
        branch = error["loc"][same] if len(error["loc"]) > len(path) else None
        union = None if branch is None else path[:same]
        return cls(kind, path, value, text, union, branch, error["type"] in ("literal_error", "enum"))


def _of_closest(mistakes: Sequence[_Mistake]) -> list[_Mistake]:
    """Return the mistakes without those of branches of a union that are further from the value than another one."""
    branches: dict[tuple[int | str, ...], dict[Any, list[_Mistake]]] = {}
    for one in mistakes:
        if one.union is not None:
            branches.setdefault(one.union, {}).setdefault(one.branch, []).append(one)
    left_out: set[tuple[Any, Any]] = set()
    for union, found in branches.items():
        inside = {branch: some for branch, some in found.items() if all(len(one.path) > len(union) for one in some)}
        if inside:  # the value has the type of these branches
            closest = min(inside, key=lambda branch: (sum(one.names for one in inside[branch]), len(inside[branch])))
            left_out |= {(union, branch) for branch in found if branch != closest}
    return [one for one in mistakes if (one.union, one.branch) not in left_out]


def _changed(tool: Tool, found: Any, path: tuple[int | str, ...]) -> Problem:
    _, value = _path(found, path, missing=False)
    if isinstance(value, bool):
        return _problem(tool, WRONG, path, value, "it is not one of the values")
    place = _joined(path)
    return Problem(WRONG, place, f"{place} {TOO_LONG}")


def _of_jsonschema(tool: Tool, error: Any) -> Problem:
    from jsonschema.exceptions import best_match

    if error.validator in ("anyOf", "oneOf") and error.context:
        error = best_match([error])
    path = tuple(error.absolute_path)
    if error.validator == "required":
        missing = next(name for name in error.validator_value if name not in error.instance)
        missing = next((name for name in error.validator_value if error.message.startswith(repr(name))), missing)
        return _problem(tool, MISSING, (*path, missing), None, "")
    if error.validator == "additionalProperties" and isinstance(error.instance, dict):
        known = error.schema.get("properties", {})
        extra = next((name for name in error.instance if name not in known), "")
        return _problem(tool, UNKNOWN, (*path, extra), error.instance.get(extra), "", list(known))
    return _problem(tool, WRONG, path, error.instance, shorten(error.message, 200))


def _problem(
    tool: Tool, kind: str, path: tuple[int | str, ...], value: Any, message: str, known: Sequence[str] | None = None
) -> Problem:
    place = _joined(path)
    described = dict.fromkeys(_described(tool, one) for one in tool.schema_of_arguments.along(path)) if path else {}
    allowed = f" Allowed: {shorten(' or '.join(described), 300)}." if described else ""
    if kind == MISSING:
        return Problem(kind, place, f"{place} is missing.{allowed}")
    if kind == UNKNOWN:
        if known is None:
            around = tool.schema_of_arguments.along(path[:-1])
            known = list(dict.fromkeys(name for one in around for name in one.get("properties", ())))
        known = [name for name in known if name != path[-1]]  # another branch of a union may have it
        hint = did_you_mean(str(path[-1]), known, 400) if known else "It takes none."
        return Problem(kind, place, f"{place} is no argument. {hint}")
    shown = shorten(json.dumps(value, ensure_ascii=False, default=str), 120)
    return Problem(kind, place, f"{place or 'the arguments'} = {shown} is not allowed: {message}.{allowed}")


def _described(tool: Tool, schema: Any, depth: int = 0) -> str:
    """Return the schema of an argument in few words."""
    if isinstance(schema, Mapping) and isinstance(schema.get("$ref"), str):
        schema = tool.schema_of_arguments.at(schema["$ref"])
    if not isinstance(schema, Mapping) or depth > 3:
        return "a value"
    if "enum" in schema:
        return ", ".join(json.dumps(one, ensure_ascii=False) for one in schema["enum"][:20])
    if branches := schema.get("anyOf") or schema.get("oneOf"):
        return " or ".join(dict.fromkeys(_described(tool, one, depth + 1) for one in branches))
    kind = schema.get("type", "a value")
    text = " or ".join(kind) if isinstance(kind, list) else str(kind)
    if kind == "array":
        text = f"list of {_described(tool, schema['items'], depth + 1)}" if "items" in schema else "list"
    elif "properties" in schema:
        text = f"object with {', '.join(schema['properties'])}" if schema["properties"] else "object"
    bounds = [f"{name} {schema[name]}" for name in BOUNDS if name in schema]
    return shorten(", ".join([text, *bounds]), 300)


def _path(found: Any, location: Sequence[int | str], missing: bool) -> tuple[tuple[int | str, ...], Any]:
    """Return the path of an error in the arguments, and its value; names of branches in pydantic's are left out."""
    path: list[int | str] = []
    value: Any = found
    for number, part in enumerate(location):
        last = missing and number == len(location) - 1
        inside = (isinstance(value, dict) and part in value) or (
            isinstance(value, list) and isinstance(part, int) and part < len(value)
        )
        if inside:
            value = value[part]
        elif not last:
            continue
        path.append(part)
    return tuple(path), value


def _joined(path: Sequence[int | str]) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".")


def _allows_more(schema: Any) -> bool:
    """Return True if an object with named properties allows other ones, too."""
    if isinstance(schema, list):
        return any(map(_allows_more, schema))
    if not isinstance(schema, Mapping):
        return False
    if schema.get("additionalProperties") not in (None, False) and "properties" in schema:
        return True
    return any(map(_allows_more, schema.values()))
