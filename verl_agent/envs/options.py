"""Options that recipes give to a class: the parameters of its constructor, checked by the types in its signature."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from functools import cache, partial, wraps
from types import NoneType, UnionType
from typing import Annotated, Any, Concatenate, Literal, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

from pydantic import Field
from pydantic.dataclasses import dataclass

from verl_agent.sections import STRICT, section

E = TypeVar("E")
P = ParamSpec("P")
AtLeastOne = Annotated[int, Field(ge=1)]
"""Whole number >= 1."""
Positive = Annotated[float, Field(gt=0)]
"""Number > 0."""


def checked_options(constructor: Callable[Concatenate[E, P], None]) -> Callable[Concatenate[E, P], None]:
    """Let the constructor of an adapter check its arguments, which are `env.options`, before it runs.

    A range stands in the type of a parameter: `Annotated[int, Field(ge=1, le=10)]`. The constructor then raises
    ConfigError for a value of another type or outside of the range.
    """
    signature = inspect.signature(constructor)

    @wraps(constructor)
    def checked(env: E, /, *args: P.args, **given: P.kwargs) -> None:
        _, *values = signature.bind(env, *args, **given).arguments.items()
        section("env.options", _options(constructor), dict(values))
        constructor(env, *args, **given)

    return checked


def check_options(key: str, kind: type, values: Mapping[str, Any]) -> None:
    """Check the options of a class of another package by the signature of its constructor.

    A type that no YAML value has, such as `Path`, is not checked.

    Args:
        key: key of the options, for messages.

    Raises:
        ConfigError: an option is unknown, missing, or of another type.
    """
    constructor = inspect.unwrap(kind.__init__)  # type: ignore[misc]  # that of this class is meant
    known = _options(constructor)
    if any(one.kind is one.VAR_KEYWORD for one in inspect.signature(constructor).parameters.values()):
        values = {name: value for name, value in values.items() if name in known.__dataclass_fields__}
    section(key, known, values)


@cache  # every session constructs its adapter
def _options(constructor: Callable[..., None]) -> type[Any]:
    """Return a settings class whose fields are the parameters of a constructor."""
    _, *parameters = inspect.signature(constructor).parameters.values()
    parameters = [one for one in parameters if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]
    try:
        hints = get_type_hints(constructor, include_extras=True)
    except (NameError, AttributeError):  # a type that is imported for type checkers only
        hints = {}
    types = {one.name: hint if _is_plain(hint := hints.get(one.name, Any)) else Any for one in parameters}
    defaults = {
        one.name: field(default_factory=partial(_the, one.default))  # a list is no default of a dataclass
        for one in parameters
        if one.default is not one.empty
    }
    kind = type("Options", (), {"__annotations__": types, **defaults})
    return dataclass(frozen=True, kw_only=True, config=STRICT)(kind)


def _the(value: Any) -> Any:
    return value


def _is_plain(hint: Any) -> bool:
    """Return True if YAML has values of a type."""
    if get_origin(hint) is Annotated:
        return _is_plain(get_args(hint)[0])
    if get_origin(hint) in (list, dict, Mapping, Sequence, Union, UnionType):
        return all(map(_is_plain, get_args(hint)))
    return get_origin(hint) is Literal or hint in (bool, int, float, str, NoneType, list, dict, Any)
