"""Environments of tools for tests; importable by host processes and servers."""

import datetime
import hashlib
import json
import os
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from tests.support.random_schemas import random_schema, random_value
from verl_agent.envs.tool_env import ToolEnv
from verl_agent.envs.tools import Tool, arguments, tool
from verl_agent.types import DemoAction, Message, StepResult, TaskItem, ToolCall

ITEM = TaskItem("tool_echo", "1", {})


SCHEMAS = 50
"""Tools of `Echo` with a random schema."""


def random_schemas() -> list[dict[str, Any]]:
    draws = random.Random(7)
    return [random_schema(draws) for _ in range(SCHEMAS)]


def random_calls(arguments_of_each: int, seed: int = 7) -> list[ToolCall]:
    """Return a call of each tool with a random schema, and two that are easily changed on their way."""
    draws = random.Random(seed)
    calls = [
        ToolCall(f"random_{number}", {"all": [random_value(schema, draws) for _ in range(arguments_of_each)]})
        for number, schema in enumerate(random_schemas())
    ]
    return [*calls, ToolCall("note", {"patient": "Bob at noon", "text": " 3\n"}), ToolCall("any", {"x": "é" * 2**18})]


def echo_of(call: ToolCall) -> str:
    """Return a checksum of the JSON of a call, and the JSON; both are the same for the same JSON value."""
    text = json.dumps(call.to_json(), sort_keys=True, ensure_ascii=False)
    return f"{hashlib.sha256(text.encode()).hexdigest()} {text}"


class Echo(ToolEnv):
    """Answers a call with its JSON, so that it is seen on both ways."""

    tools = (
        Tool("any", "Takes anything.", {"type": "object"}),
        Tool("note", "Takes two texts.", arguments(patient={"type": "string"}, text={"type": "string"})),
        *(
            Tool(f"random_{number}", "Takes a list.", arguments(all={"type": "array", "items": schema}))
            for number, schema in enumerate(random_schemas())
        ),
    )

    def tasks(self, split: str) -> Sequence[TaskItem]:
        return [ITEM]

    async def reset(self, item: TaskItem) -> list[Message]:
        return [{"role": "user", "content": "Call."}]

    async def call_schema_tool(self, call: ToolCall) -> Any:
        return StepResult(echo_of(call))


@dataclass
class Spot:
    """Place in the garden."""

    row: int
    column: int = 1


class Garden(ToolEnv):
    """A garden: plant what the order asks for, then finish."""

    def __init__(self) -> None:
        self.planted: list[tuple[Any, ...]] = []
        self.finished = False

    def tasks(self, split: str) -> Sequence[TaskItem]:
        return [TaskItem("garden", split, {})]

    async def reset(self, item: TaskItem) -> list[Message]:
        self.planted, self.finished = [], False
        return [{"role": "system", "content": "Tend the garden."}, {"role": "user", "content": "Plant a rose."}]

    @tool
    def plant(
        self,
        plant: str,
        spot: Spot,
        on: datetime.date | None = None,
        kind: Literal["bed", "pot"] = "bed",
        count: Annotated[int, Field(ge=1, le=9)] = 1,
        notes: list[str] | None = None,
    ) -> str:
        """Plant something.

        Args:
            plant: name of the plant,
                as in the order.
            spot: where to plant it.
        """
        self.planted.append((plant, spot, on, kind, count, notes))
        return f"planted {plant[:50]!r} in row {spot.row}"

    @tool
    async def count(self) -> int:
        """Count the plants."""
        return len(self.planted)

    @tool
    def finish(self) -> StepResult:
        """Finish the order."""
        done = not self.finished and any(planted[0] == "rose" for planted in self.planted)
        self.finished = True
        return StepResult("Done.", float(done), terminated=True)

    @tool
    def water(self, litres: float) -> None:
        """Water the garden."""
        sys.stdout.write("splash\n")

    @tool
    def dig(self, depth: int) -> str:
        """Dig a hole."""
        return f"{100 // depth} cm"

    @tool(name="list-tools", description="List the sheds.")
    def sheds(self) -> dict[str, list[str]]:
        return {"Schuppen": ["größer", "🪴"]}

    def demonstration(self, item: TaskItem) -> Sequence[DemoAction]:
        plant = ToolCall("plant", {"plant": "rose", "spot": {"row": 1}})
        return [DemoAction(plant, "The order is a rose."), DemoAction(ToolCall("finish", {}))]


class Loud(Garden):
    """A garden whose functions use the streams of their process."""

    @tool
    def shout(self) -> str:
        """Print, also below Python."""
        sys.stdout.write("splash\n" * 1000)
        os.write(1, b"raw\n")
        return "shouted"

    @tool
    def ask(self) -> str:
        """Read a line."""
        return input()
