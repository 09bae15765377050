"""Name and elements of a browser action, read from the action and the observation that it answers."""

import ast
import re
from dataclasses import dataclass

from env_adapters.webarena.browser.grammar import ActionError, parse_action
from verl_agent.envs.action_target import ActionTarget

LINE = re.compile(r"^(\t*)\[(-?\d+)\] (\w+) ('(?:[^'\\\n]|\\.)*'|\"(?:[^\"\\\n]|\\.)*\"|)", re.MULTILINE)
ACTIVATED = ("link", "button", "menuitem", "option", "tab", "checkbox", "radio", "switch")
"""Roles of elements that a click on an element inside or around them may activate."""


@dataclass(frozen=True, slots=True)
class _Line:
    """Element of a page: depth in the tree, id, role, and name; None for a name that is not shown as a whole."""

    depth: int
    number: str
    role: str
    name: str | None


def describe_action(action: str, observation: str) -> ActionTarget:
    """Return the target of an action; see `EnvAdapter.describe_action`.

    A key acts on the element with the focus, which the page does not show, and may click on it. Enter in a text field
    clicks on the default button of its form (HTML standard, implicit submission).
    """
    try:
        parsed = parse_action(action)
    except ActionError:
        return ActionTarget("", None, " ".join(action.split()))
    if parsed.kind == "press":
        return ActionTarget("press", None, str(parsed), effects=("click",))
    effects = ("press", "click") if parsed.press_enter else ()
    names = element_names(observation, parsed.element_id) if parsed.element_id else ()
    return ActionTarget(parsed.kind, names, str(parsed), effects)


def element_names(observation: str, element_id: str) -> tuple[str, ...] | None:
    """Return the name of an element, and the names of the links and buttons around and inside it.

    Returns:
        None if the observation has no such element or several ones, if none of them has a name, or if one of the names
        is not shown as a whole.
    """
    found = LINE.findall(observation)
    lines = [_Line(len(tabs), number, role, _unquote(quoted)) for tabs, number, role, quoted in found]
    places = [place for place, line in enumerate(lines) if line.number == element_id]
    if len(places) != 1:
        return None
    (place,) = places
    element, around, inside = lines[place], list[_Line](), list[_Line]()
    for line in lines[:place]:
        around = [*(outer for outer in around if outer.depth < line.depth), line]
    for line in lines[place + 1 :]:
        if line.depth <= element.depth:
            break
        inside.append(line)
    others = [outer for outer in around if outer.depth < element.depth] + inside
    names = [element.name, *(other.name for other in others if other.role in ACTIVATED)]
    if None in names:
        return None
    return tuple(filter(None, names)) or None


def _unquote(quoted: str) -> str | None:
    return None if not quoted else str(ast.literal_eval(quoted))
