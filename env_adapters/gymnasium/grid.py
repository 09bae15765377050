"""MiniGrid's view as words: the objects in it, relative to the agent."""

from typing import Any

VIEW = {"image", "direction", "mission"}
"""Keys of an observation of MiniGrid."""
HIDDEN = ("unseen", "empty", "wall", "floor", "agent")
FACING = ("east", "south", "west", "north")


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
