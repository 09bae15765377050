"""Tests of the reading of only those accessibility nodes that the viewport can show."""

import asyncio

import msgspec
import pytest
from playwright.async_api import Error

from env_adapters.webarena.browser.accessibility_tree import (
    AccessibilityTree,
    DomSnapshot,
    build_page_text,
    layout_rects,
)
from env_adapters.webarena.browser.visible_nodes import choose_subtrees, read_nodes
from tests.support.web import needs_chromium, playing, serving_pages

SIZE = (1280, 720)
CARD = "<li><article><a href=/p>Item <b>{0}</b></a><p>{0} pieces</p><button>Add {0}</button></article>"
LONG = f"<h1>List</h1><nav><a href=/>Home</a></nav><ol>{''.join(CARD.format(n) for n in range(70))}</ol>"
CLOSED_ROOT = "host.attachShadow({mode: 'closed'}).innerHTML = '<p>Shadow <slot></slot></p>'"
PAGES = {
    "/": LONG,
    "/overlay": f"<div style='padding-top: 3000px'><p style='position: fixed; top: 9px'>Over</p></div>{LONG}",
    "/contents": f"<div style='display: contents'><p>One</p><div hidden>no</div>{LONG}</div><p>last</p>",
    "/fields": f"<label>Name <input value=x></label><select><option>A<option>B</select><details>{LONG}</details>{LONG}",
    "/hidden": f"<div aria-hidden=true><p>unseen</p></div><p>seen <i aria-hidden=true>x</i></p>{LONG}",
    "/presentation": f"<div role=presentation><p>seen</p></div>{LONG}",
    "/table": f"<table><caption>Sizes</caption><tr><th>H<td>1</table><style>b::before {{content: '*'}}</style>{LONG}",
    "/owner": f"<p id=owned>Owned</p>{LONG}<div role=list aria-owns=owned></div>",
    "/frame": f"<iframe srcdoc='<p>inside'></iframe>{LONG}",
    "/shadow": f"<div id=host><b>slotted</b></div><script>{CLOSED_ROOT}</script>{LONG}",
}
WHOLE = ("/owner", "/frame", "/shadow", "/presentation")
"""Pages on which the accessibility tree may have other parents than the document.

These pages are read as a whole."""


def snapshot(*parents, seen=(), whole=None):
    """Return a snapshot of nodes with the ids 1, 2, ...; `seen` has the indexes of those inside the viewport.

    The node at index `whole` is a `details`, which is not split.
    """
    bounds = [[0, 0 if index in seen else 2000, 50, 20] for index in range(len(parents))]
    nodes = {"backendNodeId": [index + 1 for index in range(len(parents))], "parentIndex": list(parents)}
    nodes["nodeName"] = [int(index == whole) for index in range(len(parents))]
    document = {"nodes": nodes, "layout": {"nodeIndex": list(range(len(parents))), "bounds": bounds}}
    return msgspec.convert({"documents": [document], "strings": ["DIV", "DETAILS"]}, DomSnapshot)


def chosen(page):
    return choose_subtrees(page, layout_rects(page.documents[0]), SIZE)


def test_only_the_subtree_with_visible_nodes_is_chosen():
    page = snapshot(-1, 0, *[1] * 10, 0, *[12] * 90, seen=[0, 1, 2, 3])
    assert chosen(page) == [[2]]


def test_deep_visible_nodes_are_chosen_in_groups_of_one_parent():
    page = snapshot(-1, 0, *[1] * 100, 0, 102, *[102] * 100, seen=[2, 3, 103])
    assert sorted(map(sorted, chosen(page))) == [[3, 4], [104]]


def test_element_with_nodes_of_the_browser_is_not_split():
    nodes = [-1, 0, *[1] * 60, 0, *[62] * 100]
    assert chosen(snapshot(*nodes, seen=[1, 2])) == [[3]]
    assert chosen(snapshot(*nodes, seen=[1, 2], whole=1)) == [[2]]


def test_short_or_fully_visible_page_is_read_at_once():
    assert chosen(snapshot(-1, 0, 0, 0, seen=[1])) == []
    assert chosen(snapshot(-1, *[0] * 100, seen=range(101))) == []


class PartlyAnswering:
    """DevTools session of a page from which a node has just gone: one command fails and the next has no answer.

    Without `fails`, as for a page that is not painted, only the next has no answer.
    """

    def __init__(self, page, fails):
        self._fails = fails
        self.root = {"nodeId": "1", "backendDOMNodeId": page.documents[0].nodes.backend_ids[0]}
        self.methods = []

    async def send(self, method, result_type, **parameters):
        self.methods.append(method)
        if method == "Accessibility.getAXNodeAndAncestors" and self._fails:
            raise Error("No node")
        if method == "Accessibility.queryAXTree":
            await asyncio.Event().wait()
        return msgspec.convert({"nodes": [self.root]}, result_type)


@pytest.mark.parametrize("fails", [True, False])
def test_failed_or_unanswered_query_reads_all_nodes_and_leaves_no_command_behind(fails):
    page = snapshot(-1, 0, *[1] * 10, 0, *[12] * 90, seen=[0, 1, 2, 3])

    async def read():
        session = PartlyAnswering(page, fails)
        nodes = await read_nodes(session, page, layout_rects(page.documents[0]), SIZE)
        await asyncio.sleep(0)
        return nodes, session.methods, len(asyncio.all_tasks())

    nodes, methods, tasks = asyncio.run(read())
    assert [node.id for node in nodes] == ["1"] and tasks == 1
    assert methods[-2:] == ["Accessibility.getFullAXTree", "Accessibility.disable"]


async def texts(tab, size):
    """Return the text from the nodes that are read, the text from all nodes, and the number of both."""
    page = await tab.devtools.send("DOMSnapshot.captureSnapshot", DomSnapshot, computedStyles=[])
    rects = layout_rects(page.documents[0])
    some = await read_nodes(tab.devtools, page, rects, size)
    every = (await tab.devtools.send("Accessibility.getFullAXTree", AccessibilityTree)).nodes
    return build_page_text(some, rects, size), build_page_text(every, rects, size), len(some), len(every)


@needs_chromium
def test_text_is_that_of_all_nodes():
    with serving_pages(PAGES) as port, playing(port) as player:
        for path in PAGES:
            player.do(f"goto [http://site.test{path}]")
            some, every, count, total = player.run(texts(player.session.tab, SIZE))
            assert some == every, path
            assert (count == total) if path in WHOLE else (count < total / 2), path
        player.do("goto [http://site.test/table]")
        player.do("scroll [down]")
        some, every, count, total = player.run(texts(player.session.tab, SIZE))
        assert some == every and count < total / 2
        whole, every, count, total = player.run(texts(player.session.tab, None))
        assert whole == every and count == total
