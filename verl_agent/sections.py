"""Settings classes: a section of the config becomes a typed object, and errors name the key.

A field has everything that is known about a setting: type and range, default, meaning (the docstring under it), and the
markers `OnResume` and `Needs`. The reference page, the checks of a config and the rules for a resumed run follow from
it (`verl_agent.config.catalogue`). Checks across fields raise `ConfigError` in `__post_init__`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from math import isfinite
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as pydantic_dataclass
from pydantic.dataclasses import is_pydantic_dataclass
from pydantic.fields import FieldInfo
from typing_extensions import is_typeddict

from verl_agent.errors import ConfigError, did_you_mean

STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
"""Config of every class that reads what people write: no unknown keys, no text for a number, no number for a switch."""

T = TypeVar("T")


class OnResume:
    """Marker of a setting or a section that a resumed run may change; every other one it keeps.

    Args:
        commands: commands whose runs may change it: `train`, `sft`, `dpo`, `offline` (both of these and the training
            of `evolve`), `eval`, `play` (`eval` and the evaluations of `evolve`), `evolve`.
    """

    def __init__(self, *commands: str) -> None:
        self.commands = commands


class Needs:
    """Marker of a setting that has an effect only with certain values of another one.

    Args:
        key: dotted key of the other setting.
        values: its values with which this one has an effect; none for true, a number above 0, a section, or a text or
            list that is not empty.
        instead: sentences for the message: the reason, or another remedy.
    """

    def __init__(self, key: str, *values: Any, instead: str = "") -> None:
        self.key, self.values, self.instead = key, values, instead


@dataclass(frozen=True, slots=True)
class Section:
    """Registered section of the config."""

    base: str
    """Base YAML with the defaults; sections of `agent_base` occur in the other bases, too."""
    key: str
    """Dotted key; `[]` at its end for an entry of a list."""
    kind: type
    """Settings class."""
    markers: tuple[OnResume | Needs, ...] = ()
    """Markers of all its fields."""


SECTIONS: list[Section] = []
"""Registered sections, in the order of their import."""


@dataclass_transform(frozen_default=True, field_specifiers=(Field, field))
def settings(key: str, *markers: OnResume | Needs, base: str = "agent_base") -> Callable[[type[T]], type[T]]:
    """Make a class the settings class of a section: a frozen, strict pydantic dataclass, registered under its key.

    Args:
        key: dotted key of the section.
        markers: markers of all its fields.
        base: base YAML that has the defaults.
    """

    def register(kind: type[T]) -> type[T]:
        config = ConfigDict(**STRICT, use_attribute_docstrings=True)
        made = pydantic_dataclass(frozen=True, slots=True, config=config)(kind)
        SECTIONS.append(Section(base, key, made, markers))
        return made  # type: ignore[return-value]  # the same class

    return register


NOUNS = {
    bool: ("true or false", "values true or false"),
    int: ("a whole number", "whole numbers"),
    float: ("a number", "numbers"),
    str: ("a text", "texts"),
    NoneType: ("null", "nulls"),
}
"""Names of plain types in messages, singular and plural."""
MAX_VALUE_CHARS = 200
"""Characters of a value in a message."""


def section(name: str, kind: type[T], values: Mapping[str, Any]) -> T:
    """Build the settings class of one section; a section within it is built in the same way.

    Args:
        name: dotted name of the section, for messages.
        kind: the settings class.
        values: the section of the config, in plain values.

    Raises:
        ConfigError: an unknown key, a missing key or a value that is not allowed.
    """
    if not isinstance(values, Mapping):
        raise ConfigError(f"{name}={_text(values)} is not allowed. Allowed: {describe_type(kind)}.")
    known = [field.name for field in fields(kind)]  # type: ignore[arg-type]  # kind is a dataclass
    if unknown := [str(key) for key in values if key not in known]:
        raise ConfigError("\n".join(_unknown(name, key, known) for key in unknown))
    built = dict(values)
    for key, value in values.items():
        arms = _arms(field_type(kind, key)[0])
        inner = next((arm for arm in arms if is_dataclass(arm)), None)
        if isinstance(inner, type) and not isinstance(value, inner) and (value is not None or NoneType not in arms):
            built[key] = section(f"{name}.{key}", inner, {} if value is None else value)
    try:
        return kind(**built)
    except ValidationError as error:
        raise ConfigError(explain_validation(error, name, kind)) from error


def explain_validation(error: ValidationError, name: str, kind: type) -> str:
    """Return the message for a validation error: one line for each key, with its value and what is allowed.

    Args:
        error: error of pydantic.
        name: dotted name of the section or record, prefix of every key; may be empty.
        kind: class that was validated, a dataclass or a TypedDict.
    """
    lines: dict[str, str] = {}
    for problem in error.errors(include_url=False):
        path, hint, bounds = _walk(kind, problem["loc"])
        key = (name + path).lstrip(".")
        if problem["type"] in ("unexpected_keyword_argument", "no_such_attribute"):
            line = _unknown(*key.rpartition(".")[::2], [field.name for field in fields(kind)])
        elif problem["type"] == "missing":
            line = f"{key} is missing. Allowed: {describe_type(hint, bounds)}."
        elif problem["type"] == "value_error":
            line = f"{key}={_text(problem['input'])} is not allowed. {problem['ctx']['error']}"
        else:
            allowed = allowed_text(problem["input"], hint, bounds, problem.get("ctx", {}).get("pattern"))
            line = f"{key}={_text(problem['input'])} is not allowed. {allowed}"
        lines.setdefault(key, line)
    deepest = [line for key, line in lines.items() if not any(other.startswith(f"{key}[") for other in lines)]
    return "\n".join(deepest)


def allowed_text(value: object, hint: Any, bounds: Sequence[Any] = (), pattern: str | None = None) -> str:
    """Return the sentences of a message that say what is allowed in place of a value, which a pattern refused."""
    arms, allowed = _arms(hint), describe_type(hint, bounds) + (f" that matches {pattern}" if pattern else "")
    if isinstance(value, float) and not isfinite(value):
        allowed = allowed.replace("a number", "a finite number", 1)
    if type(value) not in arms and any(_is_list(arm) and _fits(value, get_args(arm)[0]) for arm in arms):
        allowed += f", such as [{_text(value)}]"
    choices = [str(choice) for arm in arms if get_origin(arm) is Literal for choice in get_args(arm)]
    meant = did_you_mean(str(value), choices) if len(choices) > 1 else ""
    return f"Allowed: {allowed}." + (f" {meant}" if meant.startswith("Did") else "")


def _fits(value: object, hint: Any) -> bool:
    """Return True if a type and its constraints allow a value."""
    try:
        TypeAdapter(hint).validate_python(value, strict=True)
    except ValidationError:
        return False
    return True


def _unknown(name: str, key: str, known: Sequence[str]) -> str:
    return f"{f'{name}.{key}'.lstrip('.')} is not a setting. {did_you_mean(key, known)}"


def _text(value: object) -> str:
    """Return the value as messages show it."""
    text = repr(value)
    return text if len(text) <= MAX_VALUE_CHARS else f"{text[:MAX_VALUE_CHARS]}..."


def field_meaning(kind: Any, name: str) -> str:
    """Return the docstring under a field of a settings class or its base, in one line without the last full stop."""
    known = (getattr(base, "__pydantic_fields__", {}).get(name) for base in kind.__mro__)
    return " ".join(next((one.description for one in known if one and one.description), "").split()).removesuffix(".")


def field_type(kind: Any, name: str) -> tuple[Any, Sequence[Any]]:
    """Return the type of a field and its constraints."""
    if is_pydantic_dataclass(kind):
        info: FieldInfo = kind.__pydantic_fields__[name]
        return info.annotation, info.metadata
    hint = get_type_hints(kind, include_extras=True)[name]
    return get_args(hint)[0] if get_origin(hint) is NotRequired else hint, ()


def _arms(hint: Any) -> list[Any]:
    """Return the types that a hint allows, without their constraints."""
    return [arm for arm, _ in _constrained_arms(hint, ())]


def _constrained_arms(hint: Any, bounds: Sequence[Any]) -> Iterator[tuple[Any, Sequence[Any]]]:
    if get_origin(hint) is Annotated:
        inner, *metadata = get_args(hint)
        own = [bound for entry in metadata for bound in getattr(entry, "metadata", [entry])]
        yield from _constrained_arms(inner, [*bounds, *own])
    elif get_origin(hint) in (UnionType, Union):
        for arm in get_args(hint):
            yield from _constrained_arms(arm, bounds)
    else:
        yield hint, bounds


def _walk(kind: Any, location: Sequence[int | str]) -> tuple[str, Any, Sequence[Any]]:
    """Follow the location of an error; return the key, its type and its constraints."""
    path, hint, bounds = "", kind, ()  # type: tuple[str, Any, Sequence[Any]]
    for part in location:
        arms = _arms(hint)
        if isinstance(part, int):
            path += f"[{part}]"
            hint, bounds = next((get_args(arm)[0] for arm in arms if _is_list(arm)), Any), ()
            continue
        owner = next((arm for arm in arms if is_dataclass(arm) or is_typeddict(arm)), None)
        if owner is not None:
            path += f".{part}"
            hint, bounds = field_type(owner, part) if part in get_type_hints(owner) else (Any, ())
        elif mapping := next((arm for arm in arms if get_origin(arm) in (dict, Mapping)), None):
            path += f".{part}"
            hint, bounds = get_args(mapping)[1], ()
        # else: pydantic's label of one type of a union, which is no key
    return path, hint, bounds


def _is_list(hint: Any) -> bool:
    return get_origin(hint) in (list, tuple, Sequence)


def describe_type(hint: Any, bounds: Sequence[Any] = (), plural: bool = False) -> str:
    """Return what a type allows, for people: `a whole number >= 1 or null`."""
    return " or ".join(_describe_arm(arm, own, plural) for arm, own in _constrained_arms(hint, bounds))


def _describe_arm(arm: Any, bounds: Sequence[Any], plural: bool) -> str:
    if get_origin(arm) is Literal:
        return ", ".join(str(choice).lower() if isinstance(choice, bool) else str(choice) for choice in get_args(arm))
    if is_typeddict(arm):
        return "objects" if plural else "an object"
    if is_dataclass(arm):
        return f"{'sections' if plural else 'a section'} with the keys {', '.join(field.name for field in fields(arm))}"
    if _is_list(arm):
        return f"{'lists' if plural else 'a list'} of {_length(bounds)}{describe_type(get_args(arm)[0], plural=True)}"
    if get_origin(arm) in (dict, Mapping):
        return "sections" if plural else "a section such as {}"
    noun = NOUNS.get(arm, ("another value", "other values"))[plural]
    if arm is str and (length := _length(bounds)):
        return f"{noun} with {length}characters"
    return noun + (_range(bounds) if arm in (int, float) else "")


def _length(bounds: Sequence[Any]) -> str:
    """Return the constraint on the length of a list or a text."""
    least = max((bound.min_length for bound in bounds if isinstance(bound, MinLen)), default=0)
    most = min((bound.max_length for bound in bounds if isinstance(bound, MaxLen)), default=None)
    if most is not None:
        return f"{most} " if most == least else f"at most {most} "
    return f"{least} or more " if least else ""


def _range(bounds: Sequence[Any]) -> str:
    """Return the constraint on a number: ` >= 0`, ` from 0 to 1`, ` above 0 and at most 1`."""
    low = next((bound for bound in bounds if isinstance(bound, Ge | Gt)), None)
    high = next((bound for bound in bounds if isinstance(bound, Le | Lt)), None)
    if low is not None and high is not None:
        below = f"at most {high.le}" if isinstance(high, Le) else f"below {high.lt}"
        if isinstance(low, Gt):
            return f" above {low.gt} and {below}"
        return f" from {low.ge} to {high.le}" if isinstance(high, Le) else f" from {low.ge} to {below}"
    if low is not None:
        return f" >= {low.ge}" if isinstance(low, Ge) else f" > {low.gt}"
    if high is not None:
        return f" <= {high.le}" if isinstance(high, Le) else f" < {high.lt}"
    return ""
