"""Names, elements and normal form of an action, as approval policies match them."""

from dataclasses import dataclass

from verl_agent.envs.action_format import ActionFormat, TagFormat


@dataclass(frozen=True, slots=True)
class ActionTarget:
    """An action by its name, its element and its normal form.

    Attributes:
        name: name of the action, one of `action_names`; "" for any other text.
        elements: names of everything that the action acts on, such as an image and the button around it; empty for an
            action on no element; None if one of the names is unknown.
        text: the action in the one form in which the environment reads it, however it was spelled.
        effects: names of further actions that this one may amount to, on an unknown element. Enter in a text field, for
            example, clicks on a button of its form.
    """

    name: str
    elements: tuple[str, ...] | None
    text: str
    effects: tuple[str, ...] = ()


def action_names(action_format: ActionFormat) -> list[str]:
    """Return the names of an environment's actions: those of its tools, or of its tags; empty without either."""
    if action_format.tools:
        return [tool.name for tool in action_format.tools]
    return [name for name, _ in action_format.tags] if isinstance(action_format, TagFormat) else []


def named_action(action_format: ActionFormat, action: str) -> ActionTarget:
    """Return the target of an action by the tool or the tag that it is written with; the element is unknown."""
    text = " ".join(action.split())
    if isinstance(action_format, TagFormat):
        if tag := action_format.split(action):
            return ActionTarget(tag[0], None, f"<{tag[0]}>{' '.join(tag[1].split())}</{tag[0]}>")
        return ActionTarget("", None, text)
    named = (tool.name for tool in action_format.tools if tool.parse(action) is not None)
    return ActionTarget(next(named, ""), None, text)
