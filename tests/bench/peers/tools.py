"""Calls of one typed function here and in TRL, verifiers, Inspect and pydantic-ai: what it gets, what a model reads.

    python tests/bench/peers/tools.py verl_agent | trl | verifiers | inspect | pydantic_ai

Each runs in a virtual environment with that library. docs/start/tools.md has the table of the results.
"""

import asyncio
import datetime
import enum
import functools
import inspect
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Arguments = Mapping[str, Any]
Answer = Callable[[Sequence[tuple[str, Any]]], Any]
"""Returns what a model reads after a reply with calls: names and arguments, which may be text that is no JSON."""


@dataclass
class Spot:
    """Place."""

    row: int
    column: int = 1


class Colour(enum.Enum):
    """Colour of a card."""

    RED = "red"


def book(
    patient: str,
    at: datetime.time,
    spot: Spot,
    room: Literal["A", "B"] = "A",
    colour: Colour = Colour.RED,
    notes: list[str] | None = None,
    count: int = 1,
) -> str:
    """Book a visit.

    Args:
        patient: full name as in the file.
        at: time of day.
        spot: the place.
        room: the room.
        colour: the colour.
        notes: the notes.
        count: number of visits.
    """
    return f"got {patient!r} {at!r} {spot!r} {room!r} {colour!r} {notes!r} {count!r}"


async def later(n: int) -> str:
    """Wait.

    Args:
        n: seconds.
    """
    await asyncio.sleep(0)
    return f"waited {n}"


def nothing(n: int) -> None:
    """Do nothing.

    Args:
        n: a number.
    """


def fail(n: int) -> str:
    """Fail.

    Args:
        n: a number.
    """
    raise ValueError("the boiler is broken")


FUNCTIONS = (book, later, nothing, fail)
RING = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
"""Arguments of `ring`, which is known by its schema alone."""
GOOD: Arguments = {"patient": " Bob at noon\n", "at": "12:30:00", "spot": {"row": 2}, "notes": ["größer", ""]}
CASES: Mapping[str, Sequence[tuple[str, Any]]] = {
    "typed, optional, nested, enum": [("book", GOOD)],
    "missing argument": [("book", {"at": "12:30:00", "spot": {"row": 2}})],
    "unknown argument": [("book", {**GOOD, "roon": "A"})],
    "wrong nested argument": [("book", {**GOOD, "spot": {"row": "x"}})],
    "value outside of an enum": [("book", {**GOOD, "room": "C"})],
    "several errors": [("book", {"at": "25:00", "spot": {"row": 2}, "room": "C", "roon": 1})],
    "text for an integer": [("book", {**GOOD, "count": "3"})],
    "true for an integer": [("book", {**GOOD, "count": True})],
    "unknown function": [("bok", GOOD)],
    "broken JSON": [("later", '{"n": ')],
    "async": [("later", {"n": 1})],
    "nothing returned": [("nothing", {"n": 1})],
    "exception": [("fail", {"n": 1})],
    "twelve calls": [("later", {"n": n}) for n in range(12)],
    "schema alone, wrong argument": [("ring", {"n": "x", "m": 1})],
}


def verl_agent() -> Answer:
    import verl_agent as va

    class Env(va.ToolEnv):
        tools = (va.Tool("ring", "Ring.", RING),)

        def tasks(self, split: str) -> Any:
            return [va.TaskItem("env", "1", {})]

        async def reset(self, item: Any) -> Any:
            return [{"role": "user", "content": "Call."}]

        async def call_schema_tool(self, call: Any) -> Any:
            return f"got {dict(call.arguments)}"

        book, later, nothing, fail = (staticmethod(va.tool(one)) for one in FUNCTIONS)

    def answer(calls: Sequence[tuple[str, Any]]) -> Any:
        texts = [f'{{"name": "{name}", "arguments": {text_of(value)}}}' for name, value in calls]
        reply = "".join(f"<tool_call>{text}</tool_call>" for text in texts)
        env = Env()
        episode = va.play_sync(env.tasks("test")[0], env, agent="tools", policy=lambda _: reply, max_turns=1)
        return episode.messages[-1].get("answers", episode.messages[-1]["content"])

    return answer


def trl() -> Answer:
    """Schemas and calls as in `GRPOTrainer._tool_call_loop` of TRL 1.16."""
    from transformers.utils import get_json_schema

    for one in FUNCTIONS:
        show(one.__name__, get_json_schema(one))
    known = {one.__name__: one for one in FUNCTIONS}

    def result(name: str, arguments: Any) -> Any:
        try:
            if name not in known:
                raise ValueError(f"Tool {name} not found.")
            returned = known[name](**arguments)
            return asyncio.run(returned) if inspect.isawaitable(returned) else returned  # type: ignore[arg-type]
        except Exception as error:  # boundary: as TRL does
            return {"error": str(error)}

    return lambda calls: [str(result(name, arguments)) for name, arguments in calls]


def verifiers() -> Answer:
    """The server of verifiers' tool sets, which are servers of MCP."""
    from mcp.server.mcpserver import MCPServer  # type: ignore[import-not-found]

    server = MCPServer("tools")
    for one in FUNCTIONS:
        server.add_tool(one, name=one.__name__, description=one.__doc__)

    async def result(name: str, arguments: Any) -> Any:
        try:
            return str(await server.call_tool(name, arguments))
        except Exception as error:  # boundary: the server makes it the text of a result
            return f"{type(error).__name__}: {error}"

    return lambda calls: [asyncio.run(result(name, arguments)) for name, arguments in calls]


def inspect_ai() -> Answer:
    from inspect_ai.model import ChatMessageAssistant, ChatMessageUser, execute_tools  # type: ignore[import-not-found]
    from inspect_ai.tool import ToolCall, ToolDef, ToolParams  # type: ignore[import-not-found]

    async def ring(**values: Any) -> str:
        return f"got {values}"

    def as_async(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        async def call(**values: Any) -> Any:
            returned = function(**values)
            return await returned if inspect.isawaitable(returned) else returned

        return call

    tools = [ToolDef(as_async(one), name=one.__name__) for one in FUNCTIONS]
    tools.append(ToolDef(ring, name="ring", description="Ring.", parameters=ToolParams.model_validate(RING)))

    async def results(calls: Sequence[tuple[str, Any]]) -> Any:
        made = [
            ToolCall(id=str(number), function=name, arguments=value if isinstance(value, dict) else {})
            for number, (name, value) in enumerate(calls)
        ]
        said = [ChatMessageUser(content="Call."), ChatMessageAssistant(content="", tool_calls=made)]
        found = await execute_tools(said, tools)
        return [one.error.message if one.error else one.content for one in found.messages]

    return lambda calls: asyncio.run(results(calls))


def pydantic_ai() -> Answer:
    from pydantic_ai import Agent, Tool  # type: ignore[import-not-found]
    from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart  # type: ignore[import-not-found]
    from pydantic_ai.models.function import FunctionModel  # type: ignore[import-not-found]

    ring = Tool.from_schema(lambda **values: f"got {values}", name="ring", description="Ring.", json_schema=RING)

    def answer(calls: Sequence[tuple[str, Any]]) -> Any:
        heard: list[Any] = []

        def model(messages: Any, info: Any) -> Any:
            if len(messages) == 1:
                return ModelResponse(parts=[ToolCallPart(name, value) for name, value in calls])
            heard.extend(part.content for part in messages[-1].parts)
            return ModelResponse(parts=[TextPart("done")])

        Agent(FunctionModel(model), tools=[*FUNCTIONS, ring]).run_sync("Call.")
        return heard

    return answer


def text_of(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def show(name: str, value: Any) -> None:
    sys.stdout.write(f"{name}: {text_of(value) if isinstance(value, dict) else value}\n")


def main() -> None:
    sides = {"verl_agent": verl_agent, "trl": trl, "verifiers": verifiers, "inspect": inspect_ai}
    answer = {**sides, "pydantic_ai": pydantic_ai}[sys.argv[1]]()
    for name, calls in CASES.items():
        try:
            show(name, answer(calls))
        except Exception as error:  # boundary: an exception ends the run of this library
            show(name, f"the run ends with {type(error).__name__}: {str(error)[:200]}")


if __name__ == "__main__":
    main()
