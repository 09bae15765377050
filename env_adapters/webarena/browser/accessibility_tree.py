"""Text of a page in WebArena's format, built from one accessibility tree and one DOM snapshot.

It follows `TextObervationProcessor` in github.com/web-arena-x/webarena (browser_env/processors.py): which nodes are
visible, how a line is formatted, and which lines are left out. docs/environments/webarena.md lists the differences.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec

from verl_agent.types import Box

Rect: TypeAlias = tuple[float, float, float, float]
"""Left, top, width, height in CSS pixels, relative to the viewport."""

VISIBLE_RATIO = 0.6
HIDDEN_PROPERTIES = frozenset(("focusable", "editable", "readonly", "level", "settable", "multiline", "invalid"))
"""Properties of a node that are not shown."""
STRUCTURAL_ROLES = frozenset(
    ("generic", "img", "list", "strong", "paragraph", "banner", "navigation", "Section", "LabelText", "Legend")
)
"""Roles that are left out if they have neither name nor properties. A list item is left out if it has no name."""
OPTION_ROLES = frozenset(("MenuListPopup", "option"))
ROLES_WITHOUT_LAYOUT = frozenset(("MenuListPopup", "LineBreak"))
"""Roles that have no rectangle, even if their parent has one."""
INLINE_TEXT_BOX = "] InlineTextBox '"
"""Marks lines that only repeat the text above them."""
STATIC_TEXT = re.compile(r"\[\d+\] StaticText (.+)", re.DOTALL)
DUPLICATE_WINDOW = 3
"""A text is left out if one of this many lines above contains it."""


class Value(msgspec.Struct, frozen=True, gc=False):
    """Value of a field of an accessibility node; without `value` if the node has none."""

    value: Any = None


class Property(msgspec.Struct, gc=False):
    """Property of an accessibility node."""

    name: str
    value: Value


class AccessibilityNode(msgspec.Struct, gc=False):
    """Accessibility node in the DevTools protocol, with the fields that the text needs."""

    id: str = msgspec.field(name="nodeId")
    ignored: bool = False
    role: Value = Value("")
    name: Value = Value()
    properties: Sequence[Property] = ()
    child_ids: Sequence[str] = msgspec.field(name="childIds", default=())
    backend_id: int = msgspec.field(name="backendDOMNodeId", default=0)


class AccessibilityTree(msgspec.Struct):
    """Result of `Accessibility.getFullAXTree`. The first node is the root."""

    nodes: Sequence[AccessibilityNode]


class NodeField(msgspec.Struct):
    """Field that few nodes have: the indexes of these nodes, and the values as indexes of the snapshot's strings."""

    index: Sequence[int] = ()
    value: Sequence[int] = ()


class DomNodes(msgspec.Struct):
    """Nodes of a document in document order; `names` are indexes of the snapshot's strings."""

    backend_ids: Sequence[int] = msgspec.field(name="backendNodeId")
    parent_indexes: Sequence[int] = msgspec.field(name="parentIndex", default=())
    names: Sequence[int] = msgspec.field(name="nodeName", default=())
    pseudo_types: NodeField = msgspec.field(name="pseudoType", default_factory=NodeField)
    shadow_root_types: NodeField = msgspec.field(name="shadowRootType", default_factory=NodeField)


class DocumentLayout(msgspec.Struct):
    """Boxes of a document: the index of the node, and the bounds in CSS pixels relative to the document."""

    node_indexes: Sequence[int] = msgspec.field(name="nodeIndex")
    bounds: Sequence[Rect]


class Document(msgspec.Struct):
    """A document of a DOM snapshot; `title` is an index of the snapshot's strings, or -1."""

    nodes: DomNodes
    layout: DocumentLayout
    title: int = -1
    scroll_left: float = msgspec.field(name="scrollOffsetX", default=0.0)
    scroll_top: float = msgspec.field(name="scrollOffsetY", default=0.0)


class DomSnapshot(msgspec.Struct):
    """Result of `DOMSnapshot.captureSnapshot`, with the fields that the text needs."""

    documents: Sequence[Document]
    strings: Sequence[str] = ()

    @property
    def title(self) -> str:
        index = self.documents[0].title
        return " ".join(self.strings[index].split()) if index >= 0 else ""


@dataclass(frozen=True, slots=True)
class Element:
    """Element of the page that an id in the text refers to.

    Attributes:
        backend_id: backend node id of the DOM node.
        role: accessibility role, for example `link`.
        description: the line without its id, for example `link 'Home'`.
        rect: rectangle relative to the viewport in CSS pixels, or None.
    """

    backend_id: int
    role: str
    description: str
    rect: Rect | None = None

    def box(self, size: tuple[int, int]) -> Box | None:
        """Return its place in a viewport of `size`, if it has one."""
        if self.rect is None:
            return None
        x, y, width, height = self.rect
        return x / size[0], y / size[1], width / size[0], height / size[1]


class NodeNumbers:
    """Stable numbers for the nodes of a page, from 1 in the order in which they are first shown.

    The browser's own numbers depend on when it paints each node. These are the same whenever an episode is replayed.
    """

    def __init__(self) -> None:
        self._root = ""
        self._numbers: dict[str, str] = {}

    def start_page(self, root: str) -> None:
        """Start to number the page with this root id; the numbers are kept if the root is unchanged."""
        if root != self._root:
            self.reset()
            self._root = root

    def reset(self) -> None:
        """Forget all numbers, because a new document may use the same ids for other nodes."""
        self._root = ""
        self._numbers.clear()

    def number_of(self, node_id: str) -> str:
        """Return the number of a node; a new node gets the next one."""
        return self._numbers.setdefault(node_id, str(len(self._numbers) + 1))


@dataclass(frozen=True, slots=True)
class PageText:
    """Text of a page.

    Attributes:
        lines: one line for each node, indented by tabs.
        elements: elements that actions can refer to, by the id in brackets.
    """

    lines: Sequence[str]
    elements: Mapping[str, Element]


def layout_rects(document: Document) -> dict[int, Rect | None]:
    """Return the layout rectangle of each node by backend node id.

    A node without layout has None. Nodes that the browser itself adds to a text field are not in the snapshot.
    """
    ids, left, top = document.nodes.backend_ids, document.scroll_left, document.scroll_top
    rects: dict[int, Rect | None] = dict.fromkeys(ids)
    for index, (x, y, width, height) in zip(document.layout.node_indexes, document.layout.bounds, strict=True):
        rects[ids[index]] = (x - left, y - top, width, height)
    for index in document.nodes.pseudo_types.index:
        rects[ids[index]] = None  # WebArena asks an element for its rectangle, and a pseudo-element has no element
    return rects


def is_in_view(rect: Rect | None, size: tuple[int, int]) -> bool:
    """Return True if WebArena shows a node at `rect` in a viewport of `size`.

    WebArena's ratio is the visible area divided by the width, times the height. This is not the visible share of the
    node's area, but only the same formula gives the same text.
    """
    if rect is None or not rect[2] or not rect[3]:
        return False
    x, y, width, height = rect
    visible_width = max(0.0, min(x + width, size[0]) - max(x, 0.0))
    visible_height = max(0.0, min(y + height, size[1]) - max(y, 0.0))
    return visible_width * visible_height / width * height >= VISIBLE_RATIO


def build_page_text(
    nodes: Sequence[AccessibilityNode],
    rects: Mapping[int, Rect | None],
    size: tuple[int, int] | None,
    show_options: bool = False,
    numbers: NodeNumbers | None = None,
) -> PageText:
    """Return the text of a page.

    Args:
        nodes: nodes of `Accessibility.getFullAXTree`; the first is the root.
        rects: result of `layout_rects`.
        size: width and height of the viewport in CSS pixels; nodes outside it are left out. None for the whole page.
        show_options: show the options of closed lists wherever the list is shown. WebArena does not show them.
        numbers: numbers of the nodes; None for the browser's own.
    """
    by_id: dict[str, AccessibilityNode] = {}
    for node in nodes:
        by_id.setdefault(node.id, node)  # the browser sends a few nodes twice
    lines: list[str] = []
    elements: dict[str, Element] = {}
    if numbers is not None and nodes:
        numbers.start_page(nodes[0].id)
    stack: list[tuple[str, int, Rect | None]] = [(nodes[0].id, 0, None)] if nodes else []
    while stack:
        node_id, depth, rect = stack.pop()
        found = by_id.pop(node_id, None)
        if found is None:
            continue
        role, backend_id = str(found.role.value), found.backend_id
        if not (show_options and role in OPTION_ROLES):  # options use the rectangle of their list
            rect = rects.get(backend_id, None if role in ROLES_WITHOUT_LAYOUT else rect) if backend_id else None
        shown = size is None or role == "RootWebArea" or is_in_view(rect, size)
        description = _describe(found, role) if shown else ""
        number = numbers.number_of(node_id) if description and numbers is not None else node_id
        if description:
            lines.append(f"{depth * chr(9)}[{number}] {description}")
        if description and backend_id:
            elements[number] = Element(backend_id, role, description, rect)
            depth += 1
        stack += [(child, depth, rect) for child in reversed(found.child_ids)]
    return PageText([line for line in _without_repeated_text(lines) if INLINE_TEXT_BOX not in line], elements)


def _describe(node: AccessibilityNode, role: str) -> str:
    """Return role, name and properties of a node, or "" if the node is not shown."""
    name = node.name.value
    if name is None or not role:
        return ""
    properties = [
        f"{entry.name}: {' '.join(str(entry.value.value).split())}"  # a value must not add lines to the text
        for entry in node.properties
        if entry.name not in HIDDEN_PROPERTIES and entry.value.value is not None
    ]
    if not name.strip() and (role == "listitem" or (role in STRUCTURAL_ROLES and not properties)):
        return ""
    return " ".join([f"{role} {name!r}", *properties])


def _without_repeated_text(lines: Iterable[str]) -> list[str]:
    """Return the lines without static texts that one of the lines right above contains."""
    kept: list[str] = []
    for line in lines:
        if "statictext" in line.lower():
            match = STATIC_TEXT.search(line)
            text = match[1][1:-1] if match else ""
            if not text or any(text in above for above in kept[-DUPLICATE_WINDOW:]):
                continue
        kept.append(line)
    return kept


def tab_line(titles: Sequence[str], current: int) -> str:
    """Return the first line of the text, with the titles of the open tabs.

    Example:
        >>> tab_line(["Shop", "Forum"], 1)
        'Tab 0: Shop | Tab 1 (current): Forum'
    """
    marks = [" (current)" if index == current else "" for index in range(len(titles))]
    return " | ".join(f"Tab {index}{mark}: {titles[index]}" for index, mark in enumerate(marks))
