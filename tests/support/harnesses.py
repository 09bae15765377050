"""Episodes in agents of others: the replies that run commands in each, and then solve the task."""

import ast
import json
from collections.abc import Sequence
from typing import Any

from verl_agent.envs.program.adapter import Program
from verl_agent.envs.program.harness import harness_names, read_harness
from verl_agent.types import TaskItem

LOOKS = ("pwd", "ls -la", "id", "cat lib.py", "wc -l lib.py", "python3 --version", 'echo "a\\tb" {} äö 木')
"""Commands before the solution."""


CASES = [*harness_names(), "openai_agents chat_completions", "smolagents tools"]
"""Names of harnesses, with arguments."""


def make_program(harness: str, **options: Any) -> Program:
    """Return the environment of a case."""
    name, *arguments = harness.split()
    return Program(harness={"name": name, "arguments": arguments}, tasks="terminal", **options)


def replies_to(item: TaskItem, harness: str, commands: Sequence[str] = LOOKS) -> list[str]:
    """Return the replies that run commands, and then those of the oracle."""
    name, *tools = harness.split()
    known = read_harness({"name": name})
    *solution, end = [demo.action for demo in make_program(harness).demonstration(item)]
    acts = [*map(known.act, commands), *solution]
    if tools == ["tools"]:
        acts = [as_call("bash", command=bash_of(act)) for act in acts]
        end = as_call("final_answer", answer="done")
    return [*(f'I act: "so" {{now}}.\n{act}' for act in acts), end]


def as_call(name: str, **arguments: str) -> str:
    """Return the text of a call."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def bash_of(act: str) -> str:
    """Return the command in code of smolagents."""
    return ast.literal_eval(act.partition("print(bash(")[2].rpartition("))")[0])
