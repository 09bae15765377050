"""WebArena's actions by element id: their parser, their functions, and their targets in an observation."""

import ast
import re
from dataclasses import dataclass

from verl_agent.envs.action_target import ActionTarget
from verl_agent.envs.tools import Tool, arguments

MAX_TEXT = 2_000
"""Characters that one action may type; no form of the tasks needs more."""
MAX_URL = 2_000
MAX_ANSWER = 10_000
MAX_KEYS = 60

USAGE = {
    "click": "click [id]",
    "type": "type [id] [text] [0 or 1]",
    "hover": "hover [id]",
    "press": "press [key or Control+key]",
    "scroll": "scroll [up or down]",
    "new_tab": "new_tab",
    "tab_focus": "tab_focus [number]",
    "close_tab": "close_tab",
    "goto": "goto [url]",
    "go_back": "go_back",
    "go_forward": "go_forward",
    "stop": "stop [answer]",
}
"""Syntax of each action."""

KEYS = {
    name.lower(): name
    for name in (
        *("Backquote", "Minus", "Equal", "Backslash", "Backspace", "Tab", "Delete", "Escape", "Enter", "Insert"),
        *("ArrowUp", "ArrowDown", "ArrowLeft", "ArrowRight", "Home", "End", "PageUp", "PageDown", "Space"),
        *(f"F{number}" for number in range(1, 13)),
        *("Control", "Shift", "Alt", "Meta"),
    )
} | {"ctrl": "Control", "cmd": "Meta", "command": "Meta", "esc": "Escape", "del": "Delete", "return": "Enter"}
"""Playwright's names of the keys, by their lower-case name or alias."""


class PageActionError(Exception):
    """An action that cannot be parsed or carried out; the message is shown to the model."""


@dataclass(frozen=True, slots=True)
class BrowserAction:
    """One parsed action.

    Attributes:
        kind: name of the action, a key of `USAGE`.
        element_id: id of the element for `click`, `type` and `hover`, else "".
        text: text to type, keys to press, answer, URL, number of a tab, or direction, depending on `kind`.
        press_enter: True to press Enter after typing.
    """

    kind: str
    element_id: str = ""
    text: str = ""
    press_enter: bool = False

    def __str__(self) -> str:
        """Return the action in the syntax that `parse_action` reads."""
        if self.kind == "type":
            return f"type [{self.element_id}] [{self.text}] [{int(self.press_enter)}]"
        argument = self.element_id or self.text
        return f"{self.kind} [{argument}]" if argument or self.kind == "stop" else self.kind


def parse_action(text: str) -> BrowserAction:
    """Parse one action.

    Arguments may contain brackets. A missing last argument of `type` means Enter. Only arguments are case-sensitive.
    White space is collapsed to single spaces, because typing a line break would press Enter. Quotes and backticks
    around the action are dropped.

    Raises:
        PageActionError: the action is unknown, or an argument is missing or invalid.

    Example:
        >>> parse_action("type [12] [red [small] shoes]")
        BrowserAction(kind='type', element_id='12', text='red [small] shoes', press_enter=True)
    """
    line = " ".join(text.split()).strip("`\"' ")
    if not line:
        raise PageActionError("No action was found.")
    name = re.match(r"[A-Za-z_]*", line)[0].lower()  # type: ignore[index]  # the pattern matches an empty text too
    if name not in USAGE:
        quoted = line if len(line) <= 60 else line[:59] + "…"
        raise PageActionError(f"{quoted!r} is no action. Allowed: {', '.join(USAGE.values())}.")
    rest = line[len(name) :].strip()
    if name in ("click", "hover"):
        return BrowserAction(name, element_id=_match_argument(r"\[?\s*(\d+)\s*\]?", rest, name))
    if name == "type":
        return _parse_type(rest)
    if name == "stop":
        return BrowserAction(name, text=_check_length(_strip_brackets(rest), MAX_ANSWER, "answer"))
    if name == "scroll":
        return BrowserAction(
            name, text=_match_argument(r"\[?\s*(?:direction\s*=\s*)?(up|down)\s*\]?", rest.lower(), name)
        )
    if name == "tab_focus":
        return BrowserAction(name, text=_match_argument(r"\[?\s*(\d{1,4})\s*\]?", rest, name))
    if name == "goto":
        return BrowserAction(
            name, text=_check_length(_match_argument(r"\[?\s*(\S+?)\s*\]?", rest, name), MAX_URL, "URL")
        )
    if name == "press":
        return BrowserAction(name, text=parse_keys(_strip_brackets(rest)))
    return BrowserAction(name)


def parse_keys(combination: str) -> str:
    """Return a combination of keys in Playwright's names; Meta is replaced by Control.

    Raises:
        PageActionError: a key is unknown, or the combination uses the clipboard, which sessions would share.
    """
    parts = ["+"] if combination == "+" else [part.strip() for part in combination.split("+")]
    names = [KEYS.get(part.lower(), part) for part in parts]
    names = ["Control" if name == "Meta" else name for name in names]
    modifiers, last = set(names[:-1]), names[-1]
    if len(combination) > MAX_KEYS or not all(names) or not (last in KEYS.values() or len(last) == 1):
        quoted = combination if len(combination) <= MAX_KEYS else combination[:MAX_KEYS] + "…"
        raise PageActionError(
            f"{quoted!r} is no key. Write it as in press [Enter], press [ArrowDown], press [Control+a]."
        )
    if unknown := modifiers - {"Control", "Shift", "Alt"}:
        raise PageActionError(f"{min(unknown)!r} cannot be held. Allowed before a key: Control, Shift, Alt.")
    if (modifiers & {"Control"} and last.lower() in "cvx") or (last in ("Insert", "Delete") and modifiers):
        raise PageActionError("The clipboard is off. Type the text instead.")
    return "+".join(names)


def _parse_type(rest: str) -> BrowserAction:
    match = re.fullmatch(r"\[?\s*(\d+)\s*\]?\s*\[(.*?)\]\s*(?:\[\s*(?:press_enter_after\s*=\s*)?([01])\s*\])?", rest)
    if match is None:
        raise PageActionError(f"type was not understood. Write it as: {USAGE['type']}.")
    text = _check_length(match[2], MAX_TEXT, "text")
    return BrowserAction("type", element_id=match[1], text=text, press_enter=match[3] != "0")


def _match_argument(pattern: str, rest: str, name: str) -> str:
    match = re.fullmatch(pattern, rest)
    if match is None:
        raise PageActionError(f"{name} was not understood. Write it as: {USAGE[name]}.")
    return match[1]


def _strip_brackets(rest: str) -> str:
    """Return the text between the outer brackets, or the text itself if it has none."""
    return rest[1:-1].strip() if rest.startswith("[") and rest.endswith("]") else rest


def _check_length(text: str, limit: int, argument: str) -> str:
    if len(text) > limit:
        raise PageActionError(f"The {argument} has {len(text):,} characters; at most {limit:,} are allowed.")
    return text


def _whole(description: str) -> dict[str, str]:
    return {"type": "integer", "description": description}


ID, TEXT = _whole("The number of the element."), {"type": "string"}
ENTER, COMBINATION = _whole("1 to press Enter afterwards, else 0."), {"type": "string", "description": "As Control+a."}
TOOLS = (
    Tool("click", "Click an element; clicking an option of a list chooses it.", arguments(id=ID), "click [{id}]"),
    Tool(
        "type",
        "Click a field and type a text at its end; in a list, choose the option of that name.",
        arguments(id=ID, text=TEXT, enter=ENTER),
        "type [{id}] [{text}] [{enter}]",
    ),
    Tool("hover", "Move the mouse over an element.", arguments(id=ID), "hover [{id}]"),
    Tool("press", "Press a key or a combination.", arguments(keys=COMBINATION), "press [{keys}]"),
    Tool("scroll", "Scroll by the height of the window.", arguments(direction=TEXT), "scroll [{direction}]"),
    Tool("new_tab", "Open a tab.", line="new_tab"),
    Tool("tab_focus", "Go to a tab.", arguments(number=_whole("From 0.")), "tab_focus [{number}]"),
    Tool("close_tab", "Close the current tab.", line="close_tab"),
    Tool("goto", "Go to a URL of the task's sites.", arguments(url=TEXT), "goto [{url}]"),
    Tool("go_back", "Go back to the previous page.", line="go_back"),
    Tool("go_forward", "Undo go_back.", line="go_forward"),
    Tool("stop", "End the task with an answer, or without one.", arguments(answer=TEXT), "stop [{answer}]"),
)


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
    except PageActionError:
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
    lines = [
        _Line(len(tabs), number, role, str(ast.literal_eval(quoted)) if quoted else None)
        for tabs, number, role, quoted in found
    ]
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
