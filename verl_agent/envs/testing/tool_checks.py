"""Checks of an environment's tools: descriptions, schemas that fit their functions, and calls that raise nothing."""

import inspect
import random
from functools import partial

from verl_agent.actions import CALL_ERROR
from verl_agent.envs.action_format import ToolFormat
from verl_agent.envs.base import EnvAdapter
from verl_agent.envs.call_error import FAILED, CallError
from verl_agent.envs.parsing import shorten
from verl_agent.envs.schema_samples import example, sample
from verl_agent.envs.testing.harness import Harness
from verl_agent.envs.testing.violation import ContractViolation
from verl_agent.envs.tool_check import check_action, check_call
from verl_agent.envs.tool_env import NO_RESULT
from verl_agent.envs.tools import Tool
from verl_agent.types import StepResult, ToolCall

CALLS_OF_A_TOOL = 40
"""Random calls of each tool."""
LIMIT_S = 20.0
"""Most seconds of one random call, where the checks allow no fewer."""
LONG_TEXT = "x" * 1_000_000


def check_descriptions(env: EnvAdapter) -> str | None:
    """Check that each tool is described, and that a schema and the function beside it agree.

    Returns:
        Arguments without a description, or None.
    """
    undescribed = []
    for tool in env.action_format.tools:
        if not tool.description.strip():
            advice = "Write a docstring, or description=..., that says what the function does."
            raise ContractViolation(f"tool {tool.name!r}", "has no description", advice)
        if tool.function is not None and tool.adapter is None:
            _compare(tool)
        properties = tool.parameters.get("properties", {})
        undescribed += [f"{tool.name}.{name}" for name, one in properties.items() if "description" not in one]
    return f"no description of {shorten(', '.join(undescribed))}" if undescribed else None


def _compare(tool: Tool) -> None:
    """Check that a function takes the arguments of the schema that was given for it."""
    assert tool.function is not None
    parameters = [one for one in inspect.signature(tool.function).parameters.values() if one.name != "self"]
    if any(one.kind is one.VAR_KEYWORD for one in parameters):
        return
    known = {one.name for one in parameters}
    needed = {one.name for one in parameters if one.default is one.empty}
    declared, required = set(tool.parameters.get("properties", {})), set(tool.parameters.get("required", ()))
    if wrong := sorted((declared - known) | (needed - required)):
        got = f"has a schema that differs from its function in {', '.join(wrong)}"
        raise ContractViolation(f"tool {tool.name!r}", got, "Leave the schema out, or correct it.")


def check_demonstrated(harness: Harness) -> str:
    """Check that each action of the demonstrations is a call of a tool, or the line of one.

    Returns:
        Number of actions.
    """
    tools, count = harness.env.action_format.tools, 0
    for item in harness.within_budget("demonstrations are calls", harness.items):
        for action in harness.demonstration(item) or ():
            count += 1
            call = f"demonstration({item.id!r})"
            if isinstance(action, ToolCall):
                checked = check_action(tools, action)
                if isinstance(checked, CallError):
                    raise ContractViolation(call, f"has a call that is refused: {checked.text}", "Correct the call.")
            elif isinstance(harness.env.action_format, ToolFormat):
                got = f"has the action {shorten(repr(action))}, which is no call"
                raise ContractViolation(call, got, "Return DemoAction(ToolCall(name, arguments)).")
            elif not any(_makes(tool, action) for tool in tools):
                got = f"has the action {shorten(repr(action))}, which no tool makes"
                raise ContractViolation(call, got, "Add a Tool whose line is this action, or correct a line.")
    return f"{count} actions"


def _makes(tool: Tool, action: str) -> bool:
    values = tool.parse(action)
    return values is not None and tool.render(values) == action


def check_calls(harness: Harness) -> str | None:
    """Check that calls with any allowed arguments raise nothing.

    Returns:
        Tools that returned nothing, or None.
    """
    item, silent = harness.items[0], dict[str, bool]()

    async def play(tool: Tool) -> None:
        draws = random.Random(tool.name)
        schema = tool.schema_of_arguments
        values = [example(schema), *(sample(schema, draws) for _ in range(CALLS_OF_A_TOOL))]
        texts = [name for name, one in tool.parameters.get("properties", {}).items() if one.get("type") == "string"]
        values += [{**values[0], name: LONG_TEXT} for name in texts]
        session = harness.new_session()
        await harness.reset(session, item)
        for one in values:
            if isinstance(check_call([tool], tool.name, one), CallError):
                continue  # such as a text that does not fit a pattern
            result = await harness.step(session, ToolCall(tool.name, one))
            _check_result(tool, one, result)
            silent[tool.name] = silent.get(tool.name, True) and result.observation == NO_RESULT
            if result.terminated:
                await harness.close(session)
                session = harness.new_session()
                await harness.reset(session, item)
        await harness.close(session)

    for tool in harness.within_budget("tools answer every call", harness.env.action_format.tools):
        harness.play_all([partial(play, tool)], LIMIT_S)
    nothing = [name for name, value in silent.items() if value]
    return f"nothing is returned by {', '.join(nothing)}" if nothing else None


def _check_result(tool: Tool, values: object, result: StepResult) -> None:
    if result.info.get(f"{CALL_ERROR}_{FAILED}"):
        call = shorten(f"{tool.name}({values!r})", 200)
        advice = "Return a text that tells the model what was wrong. Raise EnvError where the environment is broken."
        raise ContractViolation(call, shorten(result.observation.removeprefix(f"{tool.name} "), 300), advice)
