"""Drawings of ScienceWorld's states for the viewer: the rooms as far as the agent has seen them, and what it carries.

They are read from the recorded observations, so they need neither Java nor a replay.
"""

import re
from dataclasses import dataclass, field

from verl_agent.envs.drawing import Drawing, Table
from verl_agent.types import Episode

_ROOM = re.compile(r"This (?:room|outside location) is called the (?P<name>[^.\n]+)\. ")
_DOOR = re.compile(r"\tA door to the (?P<room>.+) \(that is (?P<state>open|closed)\)")
_OPENED = re.compile(r"(?P<verb>open|close) (?:the )?door to (?:the )?(?P<room>.+)", re.IGNORECASE)
_WALKED = re.compile(r"You move to the (?P<room>[^.\n]+)\.")
_MOVED = re.compile(r"You move the (?P<thing>.+) to the (?P<place>[^.\n]+)\.")
_AGENT = "the agent"
_END_OF_NAME = re.compile(r"[,.(]")


@dataclass(slots=True)
class _Room:
    """Room as it was last seen: state of the doors by the room behind them, and things; None before the first visit."""

    doors: dict[str, str] = field(default_factory=dict)
    things: list[str] | None = None


@dataclass(slots=True)
class _House:
    """Rooms by name, the name of that with the agent, and what the agent carries."""

    rooms: dict[str, _Room] = field(default_factory=dict)
    place: str = ""
    carried: list[str] = field(default_factory=list)

    def read(self, action: str, observation: str) -> None:
        """Take in what an observation says."""
        if found := _WALKED.match(observation):
            self.place = found["room"]
            self.rooms.setdefault(self.place, _Room())
        elif found := _MOVED.match(observation):
            self.carried = [thing for thing in self.carried if thing != found["thing"]]
            self.carried += [found["thing"]] if found["place"] == "inventory" else []
        elif (found := _OPENED.match(action)) and observation.startswith("The door is"):
            self._set_door(found["room"], "open" if found["verb"].lower() == "open" else "closed")
        elif found := _ROOM.search(observation):
            self._look(found["name"], observation[found.end() :])

    def _look(self, name: str, text: str) -> None:
        self.place = name
        seen = self.rooms.setdefault(name, _Room())
        seen.things = []
        for line in text.splitlines():
            if door := _DOOR.match(line):
                self._set_door(door["room"], door["state"])
            elif line.startswith("\t"):
                thing = _END_OF_NAME.split(line.strip())[0].removeprefix("a substance called ")
                seen.things += [thing] if thing not in (_AGENT, "air") else []

    def _set_door(self, room: str, state: str) -> None:
        for here, behind in ((self.place, room), (room, self.place)):
            self.rooms.setdefault(here, _Room()).doors[behind] = state

    def tables(self) -> list[Drawing]:
        """Return the tables of the rooms and of the inventory."""
        rows = [
            (
                f"▶ {name}" if name == self.place else f"  {name}",
                ", ".join(f"{other} ({state})" for other, state in sorted(room.doors.items())),
                "not visited" if room.things is None else ", ".join(room.things) or "nothing",
            )
            for name, room in self.rooms.items()
        ]
        if not rows:
            return []
        carried = [(thing,) for thing in self.carried] or [("nothing",)]
        return [Table("Rooms", ("  room", "doors to", "last seen there"), rows), Table("Carries", (), carried)]


def draw_house(episode: Episode) -> list[list[Drawing]]:
    """Return the known rooms and the inventory at the start and after each turn."""
    house = _House()
    prompt = episode.messages[: episode.prompt_length]
    house.read("", prompt[-1]["content"] if prompt else "")
    states = [house.tables()]
    for turn in episode.turns:
        for action, step in turn.played:
            house.read(" ".join(str(action).split()), step.observation)
        states.append(house.tables())
    return states
