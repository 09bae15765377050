"""Oracle that completes a mission in few commands with knowledge of the whole grid.

The oracle plays a copy of the game. It follows the instructions that minigrid's verifier checks.
"""

from collections.abc import Sequence
from typing import Any

from env_adapters.babyai.commands import missing_key
from env_adapters.babyai.game import GridGame
from env_adapters.babyai.texts import Brief
from env_adapters.babyai.walker import Over, Step, Walker, ahead, color_and_type, facing
from env_adapters.babyai.world import LevelGrid


def plan_steps(world: LevelGrid) -> list[Step] | None:
    """Return commands that complete the mission of a grid, or None. The grid is played and cannot be used again."""
    oracle = Oracle(GridGame(world, Brief()))
    try:
        said = -1
        while len(oracle.steps) > said:
            said = len(oracle.steps)
            oracle.fulfil(world.env.instrs)
    except Over:
        pass
    return oracle.steps if oracle.solved else None


class Oracle(Walker):
    """Player that follows the verifier's instructions."""

    def fulfil(self, mission: Any) -> None:
        """Carry out one instruction of the verifier."""
        match type(mission).__name__:
            case "GoToInstr":
                self.go_to(matching_objects(mission.desc))
            case "OpenInstr":
                self.open(matching_objects(mission.desc))
            case "PickupInstr":
                self.hands_off = mission.strict
                self.pick_up(matching_objects(mission.desc))
            case "PutNextInstr":
                self.put_next(matching_objects(mission.desc_move), matching_objects(mission.desc_fixed))
            case "AfterInstr":
                self.fulfil_parts(mission, "b", "a")
            case _:
                self.fulfil_parts(mission, "a", "b")

    def fulfil_parts(self, mission: Any, *order: str) -> None:
        """Carry out both parts of an instruction, except completed ones."""
        for part in order:
            if getattr(mission, f"{part}_done") != "success":
                self.fulfil(getattr(mission, f"instr_{part}"))

    def go_to(self, things: Sequence[Any]) -> None:
        """Walk in front of one of the objects."""
        if self.holds(things):
            self.put_down(f"I must stand before the {color_and_type(self.world.carried)}, so I put it down.")
        said = len(self.steps)
        self.walk_to(things)
        if len(self.steps) == said:  # the verifier checks only after a move
            self.say("turn left", "I stand there already; I turn and look again.")
            self.walk_to(things)

    def open(self, doors: Sequence[Any]) -> None:
        """Open one of the doors; if all are open, close one first."""
        shut = [door for door in doors if not door.is_open]
        if not shut:
            self.walk_to(doors)
            self.say("toggle", "This door is open already; I shut it to open it again.")
            return self.say("toggle", "Now I open it.")
        ready = [door for door in shut if not missing_key(door, self.world.carried)]
        return self.walk_to(ready, "toggle and go through") if ready else self.unlock(shut[0])

    def put_next(self, moved: Sequence[Any], fixed: Sequence[Any]) -> None:
        """Put one of the objects next to another one."""
        if not self.holds(moved):
            self.pick_up(moved)
        carried = self.world.carried
        others = {id(thing) for thing in fixed} - {id(carried)}
        places = [place for place, thing in self.world.things() if id(thing) in others]
        spots = [spot for place in places for spot in (ahead(place, direction) for direction in range(4))]
        with self.busy_with(self.wanted, carried):
            for spot in spots:
                if not any(self.empty(spot) for spot in spots):
                    thing = self.world.thing_at(spot) if self.world.inside(spot) else None
                    if thing is not None and thing.can_pickup() and id(thing) not in others:
                        self.clear(thing, [spot])
            free = [pose for spot in spots if self.empty(spot) for pose in facing(spot)]
            self.walk(free, f"a place for the {color_and_type(carried)}")
        self.say("drop", f"Here the {color_and_type(carried)} lies where the goal wants it.")

    def holds(self, things: Sequence[Any]) -> bool:
        """Return True if one of the objects is carried."""
        return any(thing is self.world.carried for thing in things)


def matching_objects(description: Any) -> list[Any]:
    """Return the objects that a description of the verifier matches, without walls (`a grey object` matches walls)."""
    return [thing for thing in description.obj_set if thing.type != "wall"]
