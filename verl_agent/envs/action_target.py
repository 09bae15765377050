"""Names, elements and normal form of an action, as approval policies match them."""

import re
import unicodedata
from dataclasses import dataclass
from functools import cache

from verl_agent.envs.action_format import ActionFormat, TagFormat, ToolFormat
from verl_agent.types import Action, ToolCall


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


def casefolded(text: str) -> str:
    """Return a text in NFKC and lower case, without invisible characters, with runs of white space as one space."""
    shown = "".join(char for char in unicodedata.normalize("NFKC", text) if unicodedata.category(char) != "Cf")
    return " ".join(unicodedata.normalize("NFKC", shown).split()).casefold()


def looks(text: str) -> str:
    """Return the letters and digits of a text as they look: `B u y` looks like `buy`, with Cyrillic letters too.

    Letters that many fonts draw alike, such as `I`, `l` and `1`, become one of them.
    """
    letters = (char for char in unicodedata.normalize("NFKD", text) if not unicodedata.combining(char))
    folded = "".join(char if char.isascii() else _look_alike(char) for char in letters).casefold()
    alike = folded.translate(str.maketrans("i1|!0", "lllio")).replace("i", "l").replace("rn", "m")
    return re.sub(r"[\W_]", "", alike)


@cache
def _look_alike(char: str) -> str:
    """Return the ASCII text that a character looks like (Unicode's table of confusables), or the character."""
    from confusable_homoglyphs.confusables import confusables_data  # reads a file of 1 MB

    alike = (one["c"] for one in confusables_data.get(char, ()))
    return next((text for text in alike if text.isascii() and text.isalnum()), char)


def action_names(action_format: ActionFormat) -> list[str]:
    """Return the names of an environment's actions: those of its tools, or of its tags; empty without either."""
    if action_format.tools:
        return [tool.name for tool in action_format.tools]
    return [name for name, _ in action_format.tags] if isinstance(action_format, TagFormat) else []


def named_action(action_format: ActionFormat, action: Action) -> ActionTarget:
    """Return the target of an action by the tool or the tag that it is written with; the element is unknown."""
    if isinstance(action, ToolCall):
        known = (tool.name for tool in action_format.tools if tool.name.lower() == action.name.lower())
        return ActionTarget(next(known, ""), None, str(action))
    if isinstance(action_format, ToolFormat) and isinstance(call := action_format.from_text(action), ToolCall):
        return named_action(action_format, call)
    text = " ".join(action.split())
    if isinstance(action_format, TagFormat):
        if tag := action_format.split(action):
            return ActionTarget(tag[0], None, f"<{tag[0]}>{' '.join(tag[1].split())}</{tag[0]}>")
        return ActionTarget("", None, text)
    named = (tool.name for tool in action_format.tools if tool.parse(action) is not None)
    return ActionTarget(next(named, ""), None, text)
