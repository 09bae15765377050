"""Options of an environment: the parameters of its constructor, checked by the types in its signature."""

import inspect
from collections.abc import Callable
from functools import cache, wraps
from typing import Annotated, Any, Concatenate, ParamSpec, TypeVar, get_type_hints

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

    @cache  # every session constructs its adapter
    def options() -> type[Any]:
        hints = get_type_hints(constructor, include_extras=True)
        _, *parameters = signature.parameters.values()
        defaults = {one.name: one.default for one in parameters if one.default is not one.empty}
        kind = type("Options", (), {"__annotations__": {one.name: hints[one.name] for one in parameters}, **defaults})
        return dataclass(frozen=True, kw_only=True, config=STRICT)(kind)

    @wraps(constructor)
    def checked(env: E, /, *args: P.args, **given: P.kwargs) -> None:
        _, *values = signature.bind(env, *args, **given).arguments.items()
        section("env.options", options(), dict(values))
        constructor(env, *args, **given)

    return checked
