"""Scripts of oracle episodes, for clients over HTTP."""

from collections.abc import Sequence

from tests.support.wire_client import Script
from verl_agent.envs.base import EnvAdapter
from verl_agent.envs.registry import make_env
from verl_agent.types import TaskItem


def actions(session: EnvAdapter, item: TaskItem) -> list[str]:
    """Return the oracle's actions for `item`; empty if it has no solution."""
    try:
        return [demo.action for demo in session.demonstration(item)]
    except NotImplementedError:
        return []


def spread(items: Sequence[TaskItem], count: int) -> list[int]:
    """Return at most `count` indices, evenly spread over the list."""
    return [number * len(items) // count for number in range(min(count, len(items)))]


def scripts(env: str, split: str, count: int, turns: range = range(1, 1000)) -> list[Script]:
    """Return scripts of items that are evenly spread over a split."""
    session = make_env(env)
    items = session.tasks(split)
    solved = [Script(index, actions(session, items[index])) for index in spread(items, count)]
    return [script for script in solved if len(script.actions) in turns]
