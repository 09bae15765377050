"""Reading of the accessibility nodes of a page that its viewport can show.

The browser needs 20 to 30 µs for each accessibility node that it sends, and most nodes of a long page are outside the
viewport. The DOM snapshot tells which nodes are inside. Their subtrees are read one by one, without the others.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any

from playwright.async_api import Error

from env_adapters.webarena.browser.accessibility_tree import (
    AccessibilityNode,
    AccessibilityTree,
    DomSnapshot,
    Rect,
    Value,
    is_in_view,
)
from env_adapters.webarena.browser.background import run_in_background
from env_adapters.webarena.browser.devtools import DevToolsSession

COMMAND_COST = 12
"""Cost of a command, as a number of nodes."""
PARTIAL_TIMEOUT_S = 2.0
"""Seconds for the reading of subtrees. The browser answers these queries with the next frame of the page, and a hidden
tab of a browser with windows has none."""
WHOLE_ELEMENTS = frozenset(("AUDIO", "DETAILS", "MARQUEE", "METER", "OBJECT", "PROGRESS", "SELECT", "VIDEO"))
"""Elements to which the browser adds nodes that are not in the snapshot; their subtrees are not split."""


async def read_nodes(
    session: DevToolsSession, snapshot: DomSnapshot, rects: Mapping[int, Rect | None], size: tuple[int, int] | None
) -> Sequence[AccessibilityNode]:
    """Return the accessibility nodes of a page, without most of those outside the viewport; the first is the root.

    Args:
        size: width and height of the viewport in CSS pixels; None to read all nodes.

    Raises:
        Error: the page has closed or was replaced.
    """
    if size is not None and not _has_other_structure(snapshot) and (groups := choose_subtrees(snapshot, rects, size)):
        with suppress(Error, TimeoutError):  # a node has just left the page, or the browser paints no frame of it
            async with asyncio.timeout(PARTIAL_TIMEOUT_S):
                nodes = await _read_subtrees(session, groups)
            if _is_complete(nodes, rects, size):
                return nodes
    # After a failure, `Accessibility.disable` is sent after this command, because a task starts one tick later.
    nodes = (await session.send("Accessibility.getFullAXTree", AccessibilityTree)).nodes
    if nodes[0].backend_id != snapshot.documents[0].nodes.backend_ids[0]:
        raise Error("the document was replaced")
    return nodes


async def _read_subtrees(session: DevToolsSession, groups: Sequence[Sequence[int]]) -> Sequence[AccessibilityNode]:
    """Return the nodes of some subtrees and of their ancestors; the first is the root of the page."""
    # The browser carries out the commands of a session in this order.
    commands: list[asyncio.Future[Any]] = [asyncio.ensure_future(session.send("Accessibility.enable", dict))]
    for group in groups:
        commands.append(_start(session, "Accessibility.getAXNodeAndAncestors", group[0]))
    for number in chain.from_iterable(groups):
        commands.append(_start(session, "Accessibility.queryAXTree", number))
    try:
        replies: list[Any] = (await asyncio.gather(*commands))[1:]
    finally:
        for command in commands:  # after an error, the browser does not answer the other queries
            command.cancel()
        run_in_background(session.send("Accessibility.disable", dict))
    ancestors: list[AccessibilityNode] = [node for reply in replies[: len(groups)] for node in reversed(reply.nodes)]
    descendants: list[AccessibilityNode] = [node for reply in replies[len(groups) :] for node in reply.nodes]
    for node in descendants:
        if node.ignored:  # only this command sends the name of a node that is not shown
            node.name = Value()
    return [*ancestors, *descendants]


def _start(session: DevToolsSession, method: str, number: int) -> "asyncio.Future[Any]":
    return asyncio.ensure_future(session.send(method, AccessibilityTree, backendNodeId=number))


def _has_other_structure(snapshot: DomSnapshot) -> bool:
    """Return True if the accessibility tree may have other parents than the document: frames, shadow roots, owners."""
    has_shadow_roots = bool(snapshot.documents[0].nodes.shadow_root_types.index)
    return len(snapshot.documents) > 1 or has_shadow_roots or "aria-owns" in snapshot.strings


def choose_subtrees(
    snapshot: DomSnapshot, rects: Mapping[int, Rect | None], size: tuple[int, int]
) -> Sequence[Sequence[int]]:
    """Return the subtrees to read, in groups with the same parent; empty if the whole page costs as much.

    All visible nodes are in one of the subtrees. A visible node has a box, and a node costs something only if it has.
    """
    nodes = snapshot.documents[0].nodes
    ids, parents = nodes.backend_ids, nodes.parent_indexes
    whole = [0] * len(ids)
    """Number of nodes with a box in the subtree of each node."""
    split = [0] * len(ids)
    """Cost of reading only those subtrees of the children that have visible nodes."""
    visible_children: dict[int, list[int]] = {}
    cheapest = 0
    for index in range(len(ids) - 1, -1, -1):  # children come after their parents
        rect = rects.get(ids[index])
        whole[index] += rect is not None
        cheapest = COMMAND_COST + whole[index]
        if index in visible_children and snapshot.strings[nodes.names[index]] not in WHOLE_ELEMENTS:
            cheapest = min(cheapest, COMMAND_COST + split[index])
        elif index not in visible_children and not is_in_view(rect, size):
            cheapest = 0
        if index:
            whole[parents[index]] += whole[index]
            split[parents[index]] += cheapest
            if cheapest:
                visible_children.setdefault(parents[index], []).append(index)
    if cheapest >= whole[0]:
        return []
    groups, pending = [], [0]
    while pending:
        group = []
        for child in visible_children.get(pending.pop(), ()):
            is_whole = snapshot.strings[nodes.names[child]] in WHOLE_ELEMENTS
            if child in visible_children and split[child] < whole[child] and not is_whole:
                pending.append(child)
            else:
                group.append(ids[child])
        if group:
            groups.append(group)
    return groups


def _is_complete(nodes: Sequence[AccessibilityNode], rects: Mapping[int, Rect | None], size: tuple[int, int]) -> bool:
    """Return True if the nodes have no child that was not read and that the viewport may show.

    The number of a node that belongs to the document is the id of its document node. Nodes that the browser adds
    (negative numbers) are inside a subtree that was read.
    """
    by_id = {node.id: node for node in nodes}
    reached: set[str] = set()
    pending = [nodes[0].id]
    while pending:
        number = pending.pop()
        if number not in by_id:
            backend_id = int(number)
            if backend_id not in rects or is_in_view(rects[backend_id], size):
                return False
        elif number not in reached:
            reached.add(number)
            pending += by_id[number].child_ids
    return all(
        node.id == str(node.backend_id) and (node.id in reached or not is_in_view(rects.get(node.backend_id), size))
        for node in nodes
        if node.backend_id
    )
