"""Name of an action and of the element that it acts on, as approval policies match them."""

from dataclasses import dataclass

from verl_agent.envs.action_format import ActionFormat, TagFormat


@dataclass(frozen=True, slots=True)
class ActionTarget:
    """An action by its name and its element.

    Attributes:
        name: name of the action, one of `action_names`; "" for any other text.
        element: name of the element that it acts on, such as that of a button; "" for an action on no element; None if
            the element is unknown, which an approval policy treats as any element that it forbids.
    """

    name: str
    element: str | None = ""


def action_names(action_format: ActionFormat) -> list[str]:
    """Return the names of an environment's actions: those of its tools, or of its tags; empty without either."""
    if action_format.tools:
        return [tool.name for tool in action_format.tools]
    return [name for name, _ in action_format.tags] if isinstance(action_format, TagFormat) else []


def named_action(action_format: ActionFormat, action: str) -> ActionTarget:
    """Return the target of an action by the tool or the tag that it is written with; the element is unknown."""
    for tool in action_format.tools:
        if tool.parse(action) is not None:
            return ActionTarget(tool.name, None)
    if isinstance(action_format, TagFormat) and (tag := action_format.split(action)):
        return ActionTarget(tag[0], None)
    return ActionTarget("", None)
