"""Complete a mission in few commands, knowing the whole world: for demonstrations and tests.

The oracle plays a copy of the game. It reads what to do from the instructions that minigrid's verifier checks.
"""

from collections.abc import Sequence
from typing import Any

from env_adapters.babyai.commands import missing_key
from env_adapters.babyai.game import Game
from env_adapters.babyai.maps import ahead, facing
from env_adapters.babyai.texts import Brief
from env_adapters.babyai.walker import Over, Step, Walker, plain
from env_adapters.babyai.world import Grid


def plan(world: Grid) -> list[Step] | None:
    """Commands that complete the mission of a fresh world, which is used up; None if the oracle finds none."""
    oracle = Oracle(Game(world, Brief()))
    try:
        said = -1
        while len(oracle.steps) > said:
            said = len(oracle.steps)
            oracle.fulfil(world.env.instrs)
    except Over:
        pass
    return oracle.steps if oracle.solved else None


class Oracle(Walker):
    """Does what missions ask for."""

    def fulfil(self, mission: Any) -> None:
        """Do what one instruction of the verifier asks for."""
        match type(mission).__name__:
            case "GoToInstr":
                self.go_to(meant(mission.desc))
            case "OpenInstr":
                self.open(meant(mission.desc))
            case "PickupInstr":
                self.hands_off = mission.strict
                self.pick_up(meant(mission.desc))
            case "PutNextInstr":
                self.put_next(meant(mission.desc_move), meant(mission.desc_fixed))
            case "AfterInstr":
                self.fulfil_parts(mission, "b", "a")
            case _:
                self.fulfil_parts(mission, "a", "b")

    def fulfil_parts(self, mission: Any, *order: str) -> None:
        """Do both parts of an instruction, unless they are done."""
        for part in order:
            if getattr(mission, f"{part}_done") != "success":
                self.fulfil(getattr(mission, f"instr_{part}"))

    def go_to(self, things: Sequence[Any]) -> None:
        """Stand before one of the things."""
        if self.holds(things):
            self.put_down(f"I must stand before the {plain(self.world.carried)}, so I put it down.")
        said = len(self.steps)
        self.walk_to(things)
        if len(self.steps) == said:  # the verifier looks only after a move
            self.say("turn left", "I stand there already; I turn and look again.")
            self.walk_to(things)

    def open(self, doors: Sequence[Any]) -> None:
        """Open one of the doors; where all of them are open, shut one first."""
        shut = [door for door in doors if not door.is_open]
        if not shut:
            self.walk_to(doors)
            self.say("toggle", "This door is open already; I shut it to open it again.")
            return self.say("toggle", "Now I open it.")
        ready = [door for door in shut if not missing_key(door, self.world.carried)]
        return self.walk_to(ready, "toggle and go through") if ready else self.unlock(shut[0])

    def put_next(self, moved: Sequence[Any], fixed: Sequence[Any]) -> None:
        """Put one of the things beside another one."""
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
            self.walk(free, f"a place for the {plain(carried)}")
        self.say("drop", f"Here the {plain(carried)} lies where the goal wants it.")

    def holds(self, things: Sequence[Any]) -> bool:
        """Whether one of the things is carried."""
        return any(thing is self.world.carried for thing in things)


def meant(description: Any) -> list[Any]:
    """The things that a description of the verifier names; for it `a grey object` is a wall as well."""
    return [thing for thing in description.obj_set if thing.type != "wall"]
