"""Repair a bicycle with five tools; docs/start/tools.md explains the class."""

from typing import Annotated, Literal

from pydantic import Field

import verl_agent as va

Part = Literal["brake", "chain", "saddle", "lamp"]
PARTS: tuple[str, ...] = Part.__args__


class Workshop(va.ToolEnv):
    """Repair a bicycle: one part is broken, another one is loose."""

    def tasks(self, split):
        bikes = [(bad, loose, turns) for bad in PARTS for loose in PARTS if bad != loose for turns in range(1, 6)]
        return [
            va.TaskItem("workshop", f"{bad}-{loose}-{turns}", {"broken": bad, "loose": loose, "turns": turns}, bad)
            for bad, loose, turns in bikes
            if (turns == 3) == (split == "test")
        ]

    async def reset(self, item):
        self.faults, self.ended = dict(item.data), False
        text = "The {broken} is broken, and the {loose} is loose by {turns} turns. Repair both, then finish."
        return [{"role": "user", "content": text.format(**item.data)}]

    @va.tool
    def inspect(self, part: Part) -> str:
        """Look at a part."""
        broken, loose = self.faults["broken"] == part, self.faults["loose"] == part
        return "broken" if broken else f"loose by {self.faults['turns']} turns" if loose else "fine"

    @va.tool
    def replace(self, part: Part, size: Literal["S", "M", "L"] = "M") -> str:
        """Replace a part by a new one.

        Args:
            part: the part that is broken.
            size: size of the new part.
        """
        if self.faults["broken"] == part:
            self.faults["broken"] = None
        return f"The {part} is new (size {size})."

    @va.tool
    def tighten(self, part: Part, turns: Annotated[int, Field(ge=1, le=9)]) -> str:
        """Tighten a part.

        Args:
            part: the part that is loose.
            turns: number of turns of the screw.
        """
        if (self.faults["loose"], self.faults["turns"]) == (part, turns):
            self.faults["loose"] = None
        return f"The {part} was tightened by {turns} turns."

    @va.tool
    def stock(self, parts: list[Part] | None = None) -> dict[str, int]:
        """Count the parts in stock; all of them without a list."""
        return {part: len(part) for part in parts or PARTS}

    @va.tool
    def finish(self, note: str | None = None) -> va.StepResult:
        """Give the bicycle back, which ends the task."""
        repaired = [self.faults["broken"], self.faults["loose"]].count(None)
        reward = 0.0 if self.ended else repaired / 2
        self.ended = True
        return va.StepResult(f"{repaired} of 2 faults are repaired.", reward, terminated=True)

    def demonstration(self, item):
        return [
            va.DemoAction(va.ToolCall("replace", {"part": item.data["broken"]})),
            va.DemoAction(va.ToolCall("tighten", {"part": item.data["loose"], "turns": item.data["turns"]})),
            va.DemoAction(va.ToolCall("finish", {})),
        ]
