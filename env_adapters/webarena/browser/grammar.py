"""WebArena's actions by element id, read from text. Knows neither a page nor a browser."""

import re
from dataclasses import dataclass

MAX_TEXT = 2_000
"""Characters that an action may type; more than any form of the tasks asks for."""
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
"""How each action is written."""

KEYS = {
    name.lower(): name
    for name in (
        *("Backquote", "Minus", "Equal", "Backslash", "Backspace", "Tab", "Delete", "Escape", "Enter", "Insert"),
        *("ArrowUp", "ArrowDown", "ArrowLeft", "ArrowRight", "Home", "End", "PageUp", "PageDown", "Space"),
        *(f"F{number}" for number in range(1, 13)),
        *("Control", "Shift", "Alt", "Meta"),
    )
} | {"ctrl": "Control", "cmd": "Meta", "command": "Meta", "esc": "Escape", "del": "Delete", "return": "Enter"}
"""Keys by their name in small letters."""


class ActionError(Exception):
    """An action that cannot be read or carried out; the text says why, for the model to read."""


@dataclass(frozen=True, slots=True)
class Action:
    """One action.

    Attributes:
        kind: a key of `USAGE`.
        element: id of the element for `click`, `type` and `hover`, else "".
        text: what is typed, pressed or answered, the URL to go to, the number of the tab, or up or down.
        enter: whether Enter is pressed after typing.
    """

    kind: str
    element: str = ""
    text: str = ""
    enter: bool = False

    def __str__(self) -> str:
        """As it is written."""
        if self.kind == "type":
            return f"type [{self.element}] [{self.text}] [{int(self.enter)}]"
        argument = self.element or self.text
        return f"{self.kind} [{argument}]" if argument or self.kind == "stop" else self.kind


def parse(text: str) -> Action:
    """Read one action.

    Brackets may lie inside a text, a missing last argument of `type` means Enter, and case matters in arguments only.
    The action is read as one line, without the quotes and code marks around it.

    Raises:
        ActionError: it is none, or lacks an argument.

    Example:
        >>> parse("type [12] [red [small] shoes]")
        Action(kind='type', element='12', text='red [small] shoes', enter=True)
    """
    line = " ".join(text.split()).strip("`\"' ")
    if not line:
        raise ActionError("No action was found.")
    name = re.match(r"[A-Za-z_]*", line)[0].lower()  # type: ignore[index]  # it matches the empty text too
    if name not in USAGE:
        quoted = line if len(line) <= 60 else line[:59] + "…"
        raise ActionError(f"{quoted!r} is no action. Allowed: {', '.join(USAGE.values())}.")
    rest = line[len(name) :].strip()
    if name in ("click", "hover"):
        return Action(name, element=_inside(r"\[?\s*(\d+)\s*\]?", rest, name))
    if name == "type":
        return _typing(rest)
    if name == "stop":
        return Action(name, text=_bounded(_unwrapped(rest), MAX_ANSWER, "answer"))
    if name == "scroll":
        return Action(name, text=_inside(r"\[?\s*(?:direction\s*=\s*)?(up|down)\s*\]?", rest.lower(), name))
    if name == "tab_focus":
        return Action(name, text=_inside(r"\[?\s*(\d{1,4})\s*\]?", rest, name))
    if name == "goto":
        return Action(name, text=_bounded(_inside(r"\[?\s*(\S+?)\s*\]?", rest, name), MAX_URL, "URL"))
    if name == "press":
        return Action(name, text=keys(_unwrapped(rest)))
    return Action(name)


def keys(combination: str) -> str:
    """A combination of keys in the names that the browser knows; Meta means Control here.

    Raises:
        ActionError: there is no such key, or it works on the clipboard, which sessions would share.
    """
    parts = ["+"] if combination == "+" else [part.strip() for part in combination.split("+")]
    names = [KEYS.get(part.lower(), part) for part in parts]
    names = ["Control" if name == "Meta" else name for name in names]
    modifiers, last = set(names[:-1]), names[-1]
    if len(combination) > MAX_KEYS or not all(names) or not (last in KEYS.values() or len(last) == 1):
        quoted = combination if len(combination) <= MAX_KEYS else combination[:MAX_KEYS] + "…"
        raise ActionError(f"{quoted!r} is no key. Write it as in press [Enter], press [ArrowDown], press [Control+a].")
    if unknown := modifiers - {"Control", "Shift", "Alt"}:
        raise ActionError(f"{min(unknown)!r} cannot be held. Allowed before a key: Control, Shift, Alt.")
    if (modifiers & {"Control"} and last.lower() in "cvx") or (last in ("Insert", "Delete") and modifiers):
        raise ActionError("The clipboard is off. Type the text instead.")
    return "+".join(names)


def _typing(rest: str) -> Action:
    found = re.fullmatch(
        r"\[?\s*(\d+)\s*\]?\s*\[(.*?)\]\s*(?:\[\s*(?:press_enter_after\s*=\s*)?([01])\s*\])?", rest, re.DOTALL
    )
    if found is None:
        raise ActionError(f"type was not understood. Write it as: {USAGE['type']}.")
    text = _bounded(found[2], MAX_TEXT, "text")
    return Action("type", element=found[1], text=text, enter=found[3] != "0")


def _inside(pattern: str, rest: str, name: str) -> str:
    found = re.fullmatch(pattern, rest)
    if found is None:
        raise ActionError(f"{name} was not understood. Write it as: {USAGE[name]}.")
    return found[1]


def _unwrapped(rest: str) -> str:
    """The text between the outer brackets, or all of it where there are none."""
    return rest[1:-1].strip() if rest.startswith("[") and rest.endswith("]") else rest


def _bounded(text: str, limit: int, what: str) -> str:
    if len(text) > limit:
        raise ActionError(f"The {what} has {len(text):,} characters; at most {limit:,} are allowed.")
    return text
