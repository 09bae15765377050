"""Observation texts: in AgentGym's words, or short ones for small models."""

from typing_extensions import override

from env_adapters.babyai.commands import Offer
from env_adapters.babyai.sight import Cell, FieldOfView
from env_adapters.babyai.world import object_name


class Style:
    """AgentGym's words, with the list of available actions after each observation."""

    def goal(self, mission: str) -> str:
        """Return the text before the first observation."""
        return f"Your goal: {mission}\n"

    def describe(self, sight: FieldOfView) -> str:
        """Return the visible objects, the barrier ahead and the carried object as text."""
        if any(thing is not None for thing in sight.cells.values()):
            text = "In front of you in this room, you can see several objects: "
            for seen in sight.things:
                text += f"There is a {seen.label} {position(seen.cell)}  "
        else:
            text = "You cannot see any objects within sight."
        text += "The room has walls around you. "
        if barrier := sight.barrier():
            text += f"You are facing a {barrier[0]} {barrier[1]} steps away. "
        if sight.carried is None:
            return text + "You are not carrying anything."
        return text + f"You are carrying a {object_name(sight.carried)}."

    def actions(self, offer: Offer) -> str:
        """Return the text after each observation."""
        return "\nAvailable actions: [" + ", ".join(f'"{command}"' for command in offer.moves) + "]"


def position(cell: Cell) -> str:
    """Return the position of an object in words."""
    ahead, right = cell
    if right == 0:
        return f"right in front of you {ahead} steps away."
    return f"{ahead} steps in front of you and {abs(right)} steps to your {'right' if right > 0 else 'left'}."


class Brief(Style):
    """Short texts with a quarter of the tokens and without the list of actions."""

    @override
    def goal(self, mission: str) -> str:
        return f"Goal: {mission}\n"

    @override
    def describe(self, sight: FieldOfView) -> str:
        things = "; ".join(f"{seen.label} ({brief_position(seen.cell)})" for seen in sight.things)
        text = f"You see: {things or 'nothing'}."
        if barrier := sight.barrier():
            text += f" {barrier[0].capitalize()} {barrier[1]} ahead."
        return text if sight.carried is None else f"{text} You carry a {object_name(sight.carried)}."

    def actions(self, offer: Offer) -> str:
        """Return ""; `check available actions` lists the actions."""
        return ""


def brief_position(cell: Cell) -> str:
    """Return the position of an object in few words."""
    ahead, right = cell
    parts = [f"{ahead} ahead"] if ahead else []
    if right:
        parts.append(f"{abs(right)} {'right' if right > 0 else 'left'}")
    return ", ".join(parts)
