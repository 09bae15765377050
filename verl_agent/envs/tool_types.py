"""Types of a function's parameters, as a validator of its arguments."""

import inspect
import typing
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from verl_agent.errors import ConfigError, describe_exception

if TYPE_CHECKING:  # imported where a function becomes a tool
    from pydantic import TypeAdapter


def adapter_of(function: Callable[..., Any], name: str, bound: bool) -> "tuple[TypeAdapter[Any], dict[str, str]]":
    """Return the validator of a function's arguments, which returns them by name and calls nothing.

    Returns:
        The validator, and texts that describe arguments, as in `Annotated[int, "number of seats"]`.

    Raises:
        ConfigError: a parameter has no name or no type, or one that cannot be validated.
    """
    from pydantic import TypeAdapter

    parameters = list(inspect.signature(function).parameters.values())[1 if bound else 0 :]
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except Exception as error:  # boundary: the annotations are the author's code
        raise ConfigError(
            f"tool {name!r}: its types cannot be read: {describe_exception(error)}. Define them at the top of the "
            "module."
        ) from error
    for parameter in parameters:
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise ConfigError(f"tool {name!r}: parameter {str(parameter)!r} cannot be given by name. Use named ones.")
        if parameter.name not in hints:
            raise ConfigError(f"tool {name!r}: parameter {parameter.name!r} has no type. Add one, such as `: str`.")
        if _is_lazy(hints[parameter.name]):
            raise ConfigError(
                f"tool {name!r}: {str(parameter)!r} would be checked while the function reads it. Write list[...]."
            )

    def collect(**values: Any) -> dict[str, Any]:
        return values

    named = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in parameters]
    collect.__signature__ = inspect.Signature(named)  # type: ignore[attr-defined]
    collect.__annotations__ = {one.name: hints[one.name] for one in parameters}
    try:
        made: TypeAdapter[Any] = TypeAdapter(collect)  # type: ignore[arg-type]  # pydantic validates its arguments
    except Exception as error:  # boundary: pydantic and the author's types raise errors of many kinds
        raise ConfigError(f"tool {name!r}: a type cannot be validated: {first_line(error)}") from error
    texts = {
        one.name: next((note for note in getattr(hints[one.name], "__metadata__", ()) if isinstance(note, str)), "")
        for one in parameters
    }
    return made, {parameter: text for parameter, text in texts.items() if text}


def _is_lazy(hint: Any) -> bool:
    """Return True for a type whose values pydantic checks one by one, while they are read."""
    lazy = (Iterable, Iterator, Generator)
    return hint in lazy or typing.get_origin(hint) in lazy or any(map(_is_lazy, typing.get_args(hint)))


def first_line(error: Exception) -> str:
    """Return the first line of an error."""
    return str(error).strip().split("\n")[0]
