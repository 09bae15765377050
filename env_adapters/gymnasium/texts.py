"""Observations as text and texts as actions, by Gymnasium's spaces."""

import re
from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

MAX_NUMBERS = 64
"""Most numbers of a Box that are written out."""
READABLE = ("Box", "Discrete", "MultiBinary", "MultiDiscrete", "Text")
"""Spaces that can be written, besides `Tuple` and `Dict` of them."""
COLOURED = re.compile(r"\x1b\[[0-9;]*m(.*?)\x1b\[0m", re.DOTALL)


def refusal_of_observation(space: Any, key: str = "") -> str:
    """Return the reason why observations of `space` cannot be text, or ""."""
    kind = type(space).__name__
    if kind in ("Tuple", "Dict"):
        parts = space.spaces.items() if kind == "Dict" else enumerate(space.spaces)
        return next(filter(None, (refusal_of_observation(part, f"{key}[{name!r}]") for name, part in parts)), "")
    if kind not in READABLE:
        return f"observation{key} is of the space {kind}"
    shape = space.shape or ()
    if len(shape) > 2 or prod(shape) > MAX_NUMBERS:
        return f"observation{key} is an array of shape {shape}, such as an image"
    return ""


def refusal_of_action(space: Any) -> str:
    """Return the reason why a text cannot name an action of `space`, or ""."""
    kind = type(space).__name__
    if kind in ("Discrete", "MultiBinary", "Text") or (kind == "MultiDiscrete" and len(space.nvec.shape) == 1):
        return ""
    if kind == "Tuple" and all(type(part).__name__ == "Discrete" for part in space.spaces):
        return ""
    return f"actions are {'continuous' if kind == 'Box' else f'a {kind} space'}"


def observation_text(value: Any, parts: Sequence[str] = ()) -> str:
    """Return an observation as text: numbers with at most three decimals, one part a line.

    Args:
        value: sample of a space that `refusal_of_observation` accepts.
        parts: name of each part.
    """
    if isinstance(value, dict):
        return "\n".join(f"{key}: {observation_text(part)}" for key, part in value.items())
    if isinstance(value, str):
        return value
    values = list(_flat(value))
    if len(values) == len(parts):
        return "\n".join(f"{name}: {number}" for name, number in zip(parts, values, strict=True))
    return ", ".join(values)


def _flat(value: Any) -> Iterator[str]:
    if isinstance(value, dict | str):
        yield observation_text(value)
    elif isinstance(value, tuple | list) or (hasattr(value, "shape") and value.shape):
        for part in value:
            yield from _flat(part)
    else:
        number = float(value)
        yield str(int(number)) if number.is_integer() else f"{number:.3f}"


def render_text(text: str) -> str:
    """Return what `render_mode="ansi"` shows: brackets in place of colours."""
    return COLOURED.sub(r"[\1]", text).strip("\n")


def read(space: Any, names: Sequence[str], text: str) -> Any:
    """Return the action that a text names, or None.

    Args:
        space: action space.
        names: name of each action of a Discrete space; may be empty.
        text: name or number; several numbers for a space of several choices.
    """
    kind, said = type(space).__name__, " ".join(text.strip("`'\"*. \t\n").casefold().split())
    if kind == "Text":
        return text if space.contains(text) else None
    if kind == "Discrete" and said in names:
        return int(space.start) + names.index(said)
    numbers = [int(part) for part in re.split(r"[\s,()\[\]]+", said) if re.fullmatch(r"-?[0-9]{1,9}", part)]
    if not numbers or re.sub(r"[-\d\s,()\[\]]", "", said):
        return None
    action: Any = tuple(numbers)
    if kind == "Discrete":
        action = numbers[0] if len(numbers) == 1 else None
    elif kind in ("MultiDiscrete", "MultiBinary"):
        import numpy  # Gymnasium needs it

        action = numpy.array(numbers, dtype=space.dtype)
    return action if action is not None and space.contains(action) else None


def described(space: Any, names: Sequence[str]) -> str:
    """Return the allowed actions, for the model."""
    kind = type(space).__name__
    if kind == "Text":
        return "a text"
    if kind == "Discrete":
        first = int(space.start)
        if names:
            return ", ".join(f"{name} ({first + number})" for number, name in enumerate(names))
        return f"a number from {first} to {first + int(space.n) - 1}"
    if kind == "Tuple":
        parts = [int(part.n) for part in space.spaces]
    else:
        parts = [int(n) for n in space.nvec] if kind == "MultiDiscrete" else [2] * int(space.n)
    return f"{len(parts)} numbers with spaces between, from 0 to {', '.join(str(n - 1) for n in parts)}"
