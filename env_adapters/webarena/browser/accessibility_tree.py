"""WebArena's text of a page, made from one accessibility tree and one DOM snapshot. Knows no browser.

The text is that of `TextObervationProcessor` in github.com/web-arena-x/webarena (browser_env/processors.py): which
nodes count as seen, how a line is written, which lines are left out. The README lists what differs.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

Rect: TypeAlias = tuple[float, float, float, float]
"""Left, top, width, height in CSS pixels, relative to the viewport."""

SEEN_RATIO = 0.6
HIDDEN_PROPERTIES = frozenset(("focusable", "editable", "readonly", "level", "settable", "multiline", "invalid"))
"""Properties of a node that are not shown."""
BARE_ROLES = frozenset(
    ("generic", "img", "list", "strong", "paragraph", "banner", "navigation", "Section", "LabelText", "Legend")
)
"""Roles that are left out where they have neither name nor properties; a list item is where it has no name."""
OPTION_ROLES = frozenset(("MenuListPopup", "option"))
PLACELESS_ROLES = frozenset(("MenuListPopup", "LineBreak"))
"""Roles that take no room, though what they belong to does."""
REPEATING = "] InlineTextBox '"
"""In lines that only repeat the text above them."""
STATIC_TEXT = re.compile(r"\[\d+\] StaticText (.+)", re.DOTALL)
LOOK_BACK = 3
"""Lines above a text in which it may have been said already."""


@dataclass(frozen=True, slots=True)
class Element:
    """What an id in the text stands for.

    Attributes:
        backend_id: the browser's number of the DOM node.
        role: such as `link`.
        words: the line without its id, as in `link 'Home'`.
    """

    backend_id: int
    role: str
    words: str


class Numbers:
    """Numbers for the nodes of a page, from 1 in the order in which they are first shown.

    The browser's own numbers depend on when it paints what; these are the same whenever an episode is replayed.
    """

    def __init__(self) -> None:
        self._root = ""
        self._numbers: dict[str, str] = {}

    def begin(self, root: str) -> None:
        """A page is read, whose root has this id: another one starts anew."""
        if root != self._root:
            self.forget()
            self._root = root

    def forget(self) -> None:
        """Another document has come, which may use the same ids for other nodes."""
        self._root = ""
        self._numbers.clear()

    def of(self, node_id: str) -> str:
        """The number of a node."""
        return self._numbers.setdefault(node_id, str(len(self._numbers) + 1))


@dataclass(frozen=True, slots=True)
class PageText:
    """A page as text.

    Attributes:
        lines: one a node, indented by tabs.
        elements: what can be acted on, by the id in brackets.
    """

    lines: Sequence[str]
    elements: Mapping[str, Element]


def rects(document: Mapping[str, Any]) -> dict[int, Rect | None]:
    """Where the nodes of a document of `DOMSnapshot.captureSnapshot` are laid out, by backend node id.

    Nodes that are not laid out have None; what the browser itself puts into a text field is not in the snapshot.
    """
    ids, layout = document["nodes"]["backendNodeId"], document["layout"]
    left, top = document.get("scrollOffsetX", 0.0), document.get("scrollOffsetY", 0.0)
    places: dict[int, Rect | None] = dict.fromkeys(ids)
    for index, (x, y, width, height) in zip(layout["nodeIndex"], layout["bounds"], strict=True):
        places[ids[index]] = (x - left, y - top, width, height)
    for index in document["nodes"].get("pseudoType", {}).get("index", ()):
        places[ids[index]] = None  # it has no element to ask for its place
    return places


def in_view(rect: Rect | None, size: tuple[int, int]) -> bool:
    """Whether WebArena shows a node at `rect` in a viewport of `size`.

    Its ratio is the area in view by the width, times the height, and not the share of the node's area that it is
    named after; the text can only be equal with the same formula.
    """
    if rect is None or not rect[2] or not rect[3]:
        return False
    x, y, width, height = rect
    across = max(0.0, min(x + width, size[0]) - max(x, 0.0))
    down = max(0.0, min(y + height, size[1]) - max(y, 0.0))
    return across * down / width * height >= SEEN_RATIO


def page_text(
    nodes: Sequence[Mapping[str, Any]],
    places: Mapping[int, Rect | None],
    size: tuple[int, int] | None,
    show_options: bool = False,
    numbers: Numbers | None = None,
) -> PageText:
    """The text of a page.

    Args:
        nodes: those of `Accessibility.getFullAXTree`; the first is the root.
        places: see `rects`.
        size: width and height of the viewport, outside of which nothing is shown; None for the whole page.
        show_options: show the options of closed lists too, wherever the list is shown. WebArena does not.
        numbers: those that nodes have; None for the browser's own.
    """
    by_id: dict[str, Mapping[str, Any]] = {}
    for node in nodes:
        by_id.setdefault(node["nodeId"], node)  # a few come twice
    lines: list[str] = []
    elements: dict[str, Element] = {}
    if numbers is not None and nodes:
        numbers.begin(nodes[0]["nodeId"])
    stack: list[tuple[str, int, Rect | None]] = [(nodes[0]["nodeId"], 0, None)] if nodes else []
    while stack:
        node_id, depth, place = stack.pop()
        node = by_id.pop(node_id, {})
        if not node:
            continue
        role, backend = _role(node), node.get("backendDOMNodeId", 0)
        if not (show_options and role in OPTION_ROLES):  # those lie where their list does
            place = places.get(backend, None if role in PLACELESS_ROLES else place) if backend else None
        words = _words(node, role) if size is None or role == "RootWebArea" or in_view(place, size) else ""
        number = numbers.of(node_id) if words and numbers is not None else node_id
        if words:
            lines.append(f"{depth * chr(9)}[{number}] {words}")
        if words and backend:
            elements[number] = Element(backend, role, words)
            depth += 1
        stack += [(child, depth, place) for child in reversed(node.get("childIds", ()))]
    return PageText([line for line in _said_once(lines) if REPEATING not in line], elements)


def _role(node: Mapping[str, Any]) -> str:
    return str(node.get("role", {}).get("value", ""))


def _words(node: Mapping[str, Any], role: str) -> str:
    """Role, name and properties; "" for a node that is not shown."""
    name = node.get("name", {}).get("value")
    if name is None or not role:
        return ""
    properties = [
        f"{one['name']}: {' '.join(str(one['value']['value']).split())}"  # a page must not write lines of its own
        for one in node.get("properties", ())
        if one["name"] not in HIDDEN_PROPERTIES and "value" in one.get("value", {})
    ]
    if not name.strip() and (role == "listitem" or (role in BARE_ROLES and not properties)):
        return ""
    return " ".join([f"{role} {name!r}", *properties])


def _said_once(lines: Iterable[str]) -> list[str]:
    """Leave out texts that one of the lines right above holds already."""
    kept: list[str] = []
    for line in lines:
        if "statictext" in line.lower():
            found = STATIC_TEXT.search(line)
            text = found[1][1:-1] if found else ""
            if not text or any(text in above for above in kept[-LOOK_BACK:]):
                continue
        kept.append(line)
    return kept


def tab_line(titles: Sequence[str], current: int) -> str:
    """The titles of the open tabs, as the text begins.

    Example:
        >>> tab_line(["Shop", "Forum"], 1)
        'Tab 0: Shop | Tab 1 (current): Forum'
    """
    marks = [" (current)" if index == current else "" for index in range(len(titles))]
    return " | ".join(f"Tab {index}{mark}: {titles[index]}" for index, mark in enumerate(marks))
