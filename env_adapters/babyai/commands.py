"""Text commands: the primitive moves of each available command, and the reason for each unavailable one."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from env_adapters.babyai.paths import Paths
from env_adapters.babyai.sight import FieldOfView, Seen
from env_adapters.babyai.world import Move, enterable, object_name

CHECK = "check available actions"
Way = Sequence[Move] | None
"""Moves that lead to an object, or None if no path does."""


@dataclass(frozen=True, slots=True)
class Offer:
    """Available and unavailable commands in one state.

    Attributes:
        moves: primitive moves of each available command, in the order of the list.
        refusals: reason for each unavailable command about a visible object.
    """

    moves: dict[str, Sequence[Move]] = field(default_factory=dict)
    refusals: dict[str, str] = field(default_factory=dict)

    def add(self, command: str, way: Way, *then: Move) -> None:
        """Add a command, or its refusal if there is no path."""
        if way is None:
            self.refuse(command, "as no path in view leads to it")
        else:
            self.moves[command] = [*way, *then]

    def refuse(self, command: str, reason: str, words: str = "") -> None:
        """Add the reason why a command is unavailable."""
        self.refusals[command] = f"You cannot {words or command}, {reason}."


class Grammar:
    """Commands that can be executed, with the object numbers of the observation."""

    def offer(self, sight: FieldOfView) -> Offer:
        """Return all commands for one field of view."""
        offer = Offer({"turn left": [Move.LEFT], "turn right": [Move.RIGHT]})
        paths = self.paths(sight)
        ways = [paths.facing(seen.cell) for seen in sight.things]
        labels = self.labels(sight.things, ways)
        if self.can_step(sight):
            offer.moves["move forward"] = [Move.FORWARD]
        else:
            offer.refusals["move forward"] = "There is a barrier in front of you, you can't move forward."
        for seen, way, label in zip(sight.things, ways, labels, strict=True):
            if seen.thing.type != "door":
                self.offer_pickup(offer, sight, label, way)
        self.offer_drop(offer, sight)
        self.offer_box(offer, sight)
        for seen, way in zip(sight.things, ways, strict=True):
            if seen.thing.type == "door":
                self.offer_door(offer, sight, seen, way, paths.onto(seen.cell) if seen.thing.is_open else None)
        for label, way in zip(labels, ways, strict=True):
            offer.add(f"go to {label}", way)
        offer.moves[CHECK] = []
        return offer

    def paths(self, sight: FieldOfView) -> Paths:
        """Return the paths through visible free cells."""
        return Paths([(0, 0), *(cell for cell, thing in sight.cells.items() if enterable(thing))])

    def can_step(self, sight: FieldOfView) -> bool:
        """Return True if `move forward` is available."""
        return enterable(sight.front)

    def can_drop(self, sight: FieldOfView) -> bool:
        """Return True if the cell in front is free for the carried object."""
        return sight.front is None

    def labels(self, things: Sequence[Seen], ways: Sequence[Way]) -> list[str]:
        """Return the name of each object in `pickup` and `go to`."""
        return [seen.label for seen in things]

    def offer_pickup(self, offer: Offer, sight: FieldOfView, label: str, way: Way) -> None:
        """Add `pickup <thing> <k>`, which needs empty hands."""
        if sight.carried is None:
            offer.add(f"pickup {label}", way, Move.PICKUP)
        else:
            offer.refuse(f"pickup {label}", f"as you are already carrying a {object_name(sight.carried)}")

    def offer_drop(self, offer: Offer, sight: FieldOfView) -> None:
        """Add `drop`, which needs a carried object and a free cell in front."""
        if sight.carried is None:
            offer.refuse("drop", "as you are not carrying anything", "drop the object")
        elif self.can_drop(sight):
            offer.moves["drop"] = [Move.DROP]
        else:
            offer.refuse("drop", "as there is already an object in front of you", "drop the object")

    def offer_box(self, offer: Offer, sight: FieldOfView) -> None:
        """Add `toggle` for a box in front."""
        if sight.front is not None and sight.front.type == "box":
            offer.moves["toggle"] = [Move.TOGGLE]
        else:
            offer.refuse("toggle", "as there is nothing right in front of you that you can open or close")

    def offer_door(self, offer: Offer, sight: FieldOfView, seen: Seen, way: Way, onto: Way) -> None:
        """Add `go through` for an open door, `toggle and go through` for a closed one, `toggle` for one in front."""
        label = seen.label
        if seen.thing.is_open:
            offer.add(f"go through {label}", onto)
        elif reason := missing_key(seen.thing, sight.carried):
            return offer.refuse(f"toggle and go through {label}", reason)
        else:
            offer.add(f"toggle and go through {label}", way, Move.TOGGLE, Move.FORWARD)
            offer.refuse(f"go through {label}", "as it is closed. You should toggle it first")
        if seen.cell == (1, 0) and self.can_toggle(seen):
            offer.moves["toggle"] = [Move.TOGGLE]

    def can_toggle(self, seen: Seen) -> bool:
        """Return True if `toggle` is available for a door in front whose key is not missing."""
        return True


def missing_key(door: Any, carried: Any) -> str:
    """Return the reason why a locked door stays closed; "" if it would open."""
    if not door.is_locked:
        return ""
    if carried is None or carried.type != "key":
        return "as you are not carrying a key"
    if carried.color != door.color:
        return "as the color of the key you are carrying does not match the color of door"
    return ""
