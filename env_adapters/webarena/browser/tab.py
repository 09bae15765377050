"""One tab: what it shows, whether it is still loading, and what can be done to an element of it.

Knows Playwright and the DevTools protocol, and no actions.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from playwright.async_api import CDPSession, Error, Page

from env_adapters.webarena.browser.accessibility_tree import Numbers, PageText, page_text, rects
from verl_agent.errors import EnvError

QUIET_MS = 40
"""Milliseconds without a change of the document after which it counts as settled."""
MOVING_MS = 400
"""Milliseconds after which a document that keeps changing by itself is taken as it is."""
POLL_S = 0.015
ANSWER_S = 8.0
"""Seconds that a page may take to answer a question of the browser; one that takes longer hangs."""
TITLE_S = 1.0
OPENING_S = 1.0
"""Seconds that a window which a page opens is waited for."""
SETTLED = f"""new Promise(done => {{
  const begun = performance.now();
  const over = () => {{ clearTimeout(timer); watch.disconnect(); done(document.readyState); }};
  let timer = setTimeout(over, {QUIET_MS});
  const watch = new MutationObserver(() => {{
    clearTimeout(timer);
    timer = setTimeout(over, Math.min({QUIET_MS}, Math.max(0, {MOVING_MS} - (performance.now() - begun))));
  }});
  watch.observe(document, {{subtree: true, childList: true, attributes: true, characterData: true}});
}})"""
SCROLL = """sign => {
  const page = document.scrollingElement || document.body;
  page.scrollTop += sign * window.innerHeight;
}"""
CHOOSE = """function(wanted) {
  const clean = text => text.trim().replace(/\\s+/g, ' ').toLowerCase();
  let list = this, option = null;
  if (this.tagName === 'OPTION' && wanted === null) { list = this.closest('select'); option = this; }
  if (!list || list.tagName !== 'SELECT') return 'none';
  if (list.disabled) return 'disabled';
  if (wanted !== null) {
    const options = [...list.options], word = clean(wanted);
    option = options.find(one => clean(one.label) === word) || options.find(one => clean(one.label).startsWith(word));
    if (!option) return 'missing';
  }
  if (option.disabled) return 'disabled';
  list.focus();
  option.selected = !list.multiple || wanted !== null || !option.selected;
  list.dispatchEvent(new Event('input', {bubbles: true}));
  list.dispatchEvent(new Event('change', {bubbles: true}));
  return 'chosen';
}"""
"""Choosing in a list, since its menu is drawn by the system and not by the page. Answers what came of it."""
TO_END = """(() => {
  const field = document.activeElement, chosen = getSelection();
  if (field.matches('input, textarea')) {
    const end = field.value.length;
    if (field.selectionStart === null) return 'by key';
    if (field.selectionStart === field.selectionEnd) field.setSelectionRange(end, end);
  } else if (field.isContentEditable && chosen.isCollapsed) {
    chosen.selectAllChildren(field);
    chosen.collapseToEnd();
  }
})()"""
"""A field of numbers, for one, does not say where its cursor is; `End` does it there."""
LOADING = ("Page.frameRequestedNavigation", "Page.frameStartedNavigating", "Page.frameStartedLoading")
DONE = ("Page.frameStoppedLoading", "Page.frameDetached")


class GoneError(Exception):
    """An element is not on the page any more, or has no place on it."""


def gone(error: Error) -> Exception:
    """What the failure of a question about an element means: that the element is gone, or the whole page."""
    return error if "closed" in error.message else GoneError()


class Tab:
    """One tab. `attach` comes first.

    Args:
        page: Playwright's view of it.
    """

    def __init__(self, page: Page) -> None:
        self.page = page
        self._client: CDPSession | None = None
        self._loading: set[str] = set()
        self._arriving = ""
        self._opens_until = 0.0
        self._main = ""
        self._numbers = Numbers()

    @property
    def loading(self) -> bool:
        """Whether a document, in any frame, or a window that the page opens is on its way."""
        return bool(self._loading) or time.monotonic() < self._opens_until

    async def attach(self) -> None:
        """Listen to the page; twice is no error."""
        if self._client is not None:
            return
        client = await self.page.context.new_cdp_session(self.page)
        for name in LOADING:
            client.on(name, self._note_loading)
        for name in DONE:
            client.on(name, self._note_done)
        client.on("Page.frameNavigated", self._note_arrival)
        client.on("Page.windowOpen", self._note_opening)
        await client.send("Page.enable")
        tree = await client.send("Page.getFrameTree")
        self._main = tree["frameTree"]["frame"]["id"]
        self._client = client

    def opened(self) -> None:
        """A window that this page may have asked for is there."""
        self._opens_until = 0.0

    async def title(self) -> str:
        """The title, or "" where the page does not say."""
        try:
            async with asyncio.timeout(TITLE_S):
                return " ".join((await self.page.title()).split())
        except (TimeoutError, Error):
            return ""

    async def settle(self, busy: Callable[[], bool], bound_s: float) -> None:
        """Wait until nothing loads, the network is quiet and the document does not change, for `bound_s` at most.

        Raises:
            EnvError: the page does not answer, or the document that was asked for does not come.
        """
        deadline = time.monotonic() + bound_s
        while (left := deadline - time.monotonic()) > 0:
            if self.loading or busy():
                await asyncio.sleep(min(POLL_S, left))
                continue
            with suppress(TimeoutError):  # the document before may not answer while another is awaited
                async with asyncio.timeout(left):
                    await self._still()
            if not (self.loading or busy()):
                return
        if self._arriving:
            raise EnvError(f"{self._arriving[:200]} did not come within {bound_s:g} s.")

    async def read(
        self, size: tuple[int, int] | None, show_options: bool = False, browser_numbers: bool = False
    ) -> tuple[str, PageText]:
        """The title and the text of the page.

        Args:
            size: of the viewport, to read only what is in it; None for the whole page.
            show_options: show the options of closed lists too.
            browser_numbers: number the elements as the browser does.
        """
        for tries_left in (2, 1, 0):
            try:
                # In this order the nodes are numbered as they stand in the document. Where the accessibility domain is
                # enabled, they are numbered while the page loads, and differently each time.
                snapshot, tree = await asyncio.gather(
                    self._ask("DOMSnapshot.captureSnapshot", computedStyles=[]),
                    self._ask("Accessibility.getFullAXTree"),
                )
                document = snapshot["documents"][0]
                index = document.get("title", -1)
                title = " ".join(snapshot["strings"][index].split()) if index >= 0 else ""
                numbers = None if browser_numbers else self._numbers
                return title, page_text(tree["nodes"], rects(document), size, show_options, numbers)
            except (Error, KeyError, IndexError) as error:  # another document has come in between
                if not tries_left or self.page.is_closed():
                    raise EnvError(f"the page cannot be read: {str(error).partition(chr(10))[0]}") from error
                await asyncio.sleep(POLL_S)
        raise AssertionError

    async def place(self, backend_id: int) -> tuple[float, float]:
        """Bring an element into view, and say where to click on it, in CSS pixels of the viewport.

        Raises:
            GoneError: it is not on the page any more, or takes no room.
        """
        try:
            await self._ask("DOM.scrollIntoViewIfNeeded", backendNodeId=backend_id)
            quads = (await self._ask("DOM.getContentQuads", backendNodeId=backend_id))["quads"]
        except Error as error:
            raise gone(error) from error
        for quad in quads:
            xs, ys = quad[0::2], quad[1::2]
            if max(xs) - min(xs) > 0 and max(ys) - min(ys) > 0:
                return sum(xs) / 4, sum(ys) / 4
        raise GoneError

    async def choose(self, backend_id: int, wanted: str | None) -> str:
        """Choose in a list: the option that the node is, or the one of the list that is called `wanted`.

        Returns:
            `chosen`; `none` if the node is no list or option, `missing` if there is no such option, `disabled`.
        """
        try:
            node = await self._ask("DOM.resolveNode", backendNodeId=backend_id)
            answer = await self._ask(
                "Runtime.callFunctionOn",
                objectId=node["object"]["objectId"],
                functionDeclaration=CHOOSE,
                arguments=[{"value": wanted}],
                returnByValue=True,
                userGesture=True,
            )
        except Error as error:
            raise gone(error) from error
        return str(answer["result"].get("value", "none"))

    async def to_end(self) -> None:
        """Put the cursor behind the text of the field in focus; where the page has selected it, typing replaces it."""
        with suppress(Error):  # the click has led to another page
            answer = await self._ask("Runtime.evaluate", expression=TO_END, returnByValue=True)
            if answer["result"].get("value") == "by key":
                await self.page.keyboard.press("End")

    async def history(self) -> tuple[bool, bool]:
        """Whether there is a page to go back to, and one to go forward to."""
        answer = await self._ask("Page.getNavigationHistory")
        here = answer["currentIndex"]
        blank = answer["entries"][0]["url"] == "about:blank"  # the tab began with it
        return here > blank, here + 1 < len(answer["entries"])

    async def scroll(self, sign: int) -> None:
        """Scroll by the height of the viewport, down for 1 and up for -1."""
        await self._ask("Runtime.evaluate", expression=f"({SCROLL})({sign})")

    async def _still(self) -> None:
        """Wait until the document stops changing; one that is replaced meanwhile is no error."""
        with suppress(Error):
            await self._ask("Runtime.evaluate", expression=SETTLED, awaitPromise=True, returnByValue=True)

    async def _ask(self, method: str, **parameters: Any) -> Any:
        assert self._client is not None
        try:
            async with asyncio.timeout(ANSWER_S):
                # The public `send` looks through the whole answer, some ten thousand values, for objects of
                # Playwright's, of which the protocol has none: half of the time that reading a page takes here.
                return await self._client._impl_obj.send(method=method, params=parameters, timeout=0)
        except TimeoutError:
            raise EnvError(
                f"the page {self.page.url[:200]} does not answer: {method} took more than {ANSWER_S:g} s."
            ) from None

    def _note_opening(self, event: dict[str, Any]) -> None:
        """The page opens a window, which arrives as a tab later; one that is blocked never does."""
        self._opens_until = time.monotonic() + OPENING_S

    def _note_loading(self, event: dict[str, Any]) -> None:
        self._loading.add(event["frameId"])
        if event["frameId"] == self._main and "url" in event:
            self._arriving = event["url"]

    def _note_done(self, event: dict[str, Any]) -> None:
        self._loading.discard(event["frameId"])
        if event["frameId"] == self._main:
            self._arriving = ""

    def _note_arrival(self, event: dict[str, Any]) -> None:
        if event["frame"]["id"] == self._main:
            self._arriving = ""
            self._numbers.forget()
