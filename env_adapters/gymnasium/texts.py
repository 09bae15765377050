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
    if kind in ("Discrete", "Text") or (kind in ("MultiBinary", "MultiDiscrete") and len(space.shape) == 1):
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
    parts = [part for part in re.split(r"[\s,()\[\]]+", said) if part]
    if not parts or not all(re.fullmatch(r"-?[0-9]{1,9}", part) for part in parts):
        return None
    numbers = [int(part) for part in parts]
    action: Any = tuple(numbers)
    if kind == "Discrete":
        action = numbers[0] if len(numbers) == 1 else None
    elif kind in ("MultiDiscrete", "MultiBinary"):
        import numpy  # Gymnasium needs it

        action = numpy.array(numbers).astype(space.dtype)
        action = action if action.tolist() == numbers else None  # a number beyond the type would become another one
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
        parts = [(int(part.start), int(part.n)) for part in space.spaces]
    elif kind == "MultiDiscrete":
        parts = list(zip(map(int, space.start), map(int, space.nvec), strict=True))
    else:
        parts = [(0, 2)] * int(space.n)
    least = ", ".join(str(start) for start, _ in parts) if any(start for start, _ in parts) else "0"
    most = ", ".join(str(start + count - 1) for start, count in parts)
    return f"{len(parts)} numbers with spaces between, from {least} to {most}"


VIEW = {"image", "direction", "mission"}
"""Keys of an observation of MiniGrid."""
HIDDEN = ("unseen", "empty", "wall", "floor", "agent")
FACING = ("east", "south", "west", "north")


def shows_view(observation: dict[str, Any], core: Any) -> bool:
    """Return True if the image of an observation is what the agent of MiniGrid sees; wrappers show other images."""
    if not hasattr(core, "gen_obs_grid"):
        return False
    grid, visible = core.gen_obs_grid(len(observation["image"]))
    return bool(grid.encode(visible).tolist() == observation["image"].tolist())


def describe_grid(observation: dict[str, Any]) -> str:
    """Return mission, direction, visible objects and nearest walls of an observation of MiniGrid.

    Args:
        observation: `image` has shape (width, height, 3) with object, colour and state; the agent is in the middle of
            the last row and looks to the first one.
    """
    from minigrid.core.constants import IDX_TO_COLOR, IDX_TO_OBJECT, STATE_TO_IDX

    states = {number: name for name, number in STATE_TO_IDX.items()}
    image = observation["image"]
    width, height = image.shape[0], image.shape[1]
    middle, last = width // 2, height - 1
    seen = []
    for x in range(width):
        for y in range(height):
            kind = IDX_TO_OBJECT[int(image[x, y, 0])]
            if kind in HIDDEN or (x, y) == (middle, last):
                continue
            name = f"{IDX_TO_COLOR[int(image[x, y, 1])]} {kind}" if kind != "lava" else kind
            name += f" ({states[int(image[x, y, 2])]})" if kind == "door" else ""
            seen.append((last - y + abs(x - middle), f"{name} {_place(last - y, x - middle)}"))
    lines = [
        f"Mission: {observation['mission']}",
        f"You face {FACING[int(observation['direction'])]}.",
        f"You see: {'; '.join(text for _, text in sorted(seen)) or 'no object'}.",
    ]
    walls = [
        f"{steps} {where}"
        for where, cells in (
            ("ahead", [(middle, y) for y in range(last - 1, -1, -1)]),
            ("left", [(x, last) for x in range(middle - 1, -1, -1)]),
            ("right", [(x, last) for x in range(middle + 1, width)]),
        )
        if (steps := next((n for n, (x, y) in enumerate(cells, 1) if IDX_TO_OBJECT[int(image[x, y, 0])] == "wall"), 0))
    ]
    lines += [f"Walls: {', '.join(walls)}."] if walls else []
    held = IDX_TO_OBJECT[int(image[middle, last, 0])]
    if held not in HIDDEN:
        lines.append(f"You carry a {IDX_TO_COLOR[int(image[middle, last, 1])]} {held}.")
    return "\n".join(lines)


def _place(ahead: int, right: int) -> str:
    parts = [f"{ahead} ahead"] if ahead else []
    if right:
        parts.append(f"{abs(right)} {'right' if right > 0 else 'left'}")
    return ", ".join(parts)
