"""Name and element of a browser action, read from the action and the observation that it answers."""

import ast
import re

from env_adapters.webarena.browser.grammar import ActionError, parse_action
from verl_agent.envs.action_target import ActionTarget

LINE = re.compile(r"^(\t*)\[(-?\d+)\] (\w+) ('(?:[^'\\\n]|\\.)*'|\"(?:[^\"\\\n]|\\.)*\"|)", re.MULTILINE)
ACTIVATED = ("link", "button", "menuitem", "option", "tab", "checkbox", "radio", "switch")
"""Roles of elements that a click on an element inside them activates."""


def describe_action(action: str, observation: str) -> ActionTarget:
    """Return the target of an action; see `EnvAdapter.describe_action`."""
    try:
        parsed = parse_action(action)
    except ActionError:
        return ActionTarget("", None)
    return ActionTarget(parsed.kind, element_name(observation, parsed.element_id) if parsed.element_id else "")


def element_name(observation: str, element_id: str) -> str | None:
    """Return the name of an element with the names of the links and buttons around it.

    Returns:
        None if the observation has no such element, several ones, or only the beginning of its name.
    """
    around: list[tuple[int, str, str]] = []  # depth, role and name of the elements that contain a line
    found: list[str] = []
    for tabs, number, role, quoted in LINE.findall(observation):
        depth = len(tabs)
        around = [element for element in around if element[0] < depth]
        name = _unquote(quoted)
        if number == element_id:
            if name is None:
                return None
            outer = [text for _, kind, text in around if kind in ACTIVATED]
            found.append(" ".join(filter(None, [name, *outer])))
        around.append((depth, role, name or ""))
    return found[0] if len(found) == 1 else None


def _unquote(quoted: str) -> str | None:
    return None if not quoted else str(ast.literal_eval(quoted))
