"""One tab of a browser: its text, its loading state, and operations on its elements through the DevTools protocol."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from playwright.async_api import CDPSession, Error, Page

from env_adapters.webarena.browser.accessibility_tree import NodeNumbers, PageText, build_page_text, layout_rects
from verl_agent.errors import EnvError

QUIET_MS = 40
"""Milliseconds without a change of the document after which it counts as settled."""
MOVING_MS = 400
"""Milliseconds after which a document that keeps changing counts as settled."""
POLL_S = 0.015
PROTOCOL_TIMEOUT_S = 8.0
"""Seconds after which a page that does not answer a DevTools command counts as hung."""
TITLE_TIMEOUT_S = 1.0
WINDOW_OPEN_S = 1.0
"""Seconds to wait for a window that a page opens."""
WAIT_UNTIL_STABLE = f"""new Promise(done => {{
  const startedAt = performance.now();
  const over = () => {{ clearTimeout(timer); watch.disconnect(); done(document.readyState); }};
  let timer = setTimeout(over, {QUIET_MS});
  const watch = new MutationObserver(() => {{
    clearTimeout(timer);
    timer = setTimeout(over, Math.min({QUIET_MS}, Math.max(0, {MOVING_MS} - (performance.now() - startedAt))));
  }});
  watch.observe(document, {{subtree: true, childList: true, attributes: true, characterData: true}});
}})"""
SCROLL = """sign => {
  const page = document.scrollingElement || document.body;
  page.scrollTop += sign * window.innerHeight;
}"""
SELECT_OPTION = """function(label) {
  const normalize = text => text.trim().replace(/\\s+/g, ' ').toLowerCase();
  let list = this, option = null;
  if (this.tagName === 'OPTION' && label === null) { list = this.closest('select'); option = this; }
  if (!list || list.tagName !== 'SELECT') return 'none';
  if (list.disabled) return 'disabled';
  if (label !== null) {
    const options = [...list.options], prefix = normalize(label);
    const labelOf = option => normalize(option.label);
    option = options.find(one => labelOf(one) === prefix) || options.find(one => labelOf(one).startsWith(prefix));
    if (!option) return 'missing';
  }
  if (option.disabled) return 'disabled';
  list.focus();
  option.selected = !list.multiple || label !== null || !option.selected;
  list.dispatchEvent(new Event('input', {bubbles: true}));
  list.dispatchEvent(new Event('change', {bubbles: true}));
  return 'chosen';
}"""
"""Selects an option of a list, because the system draws its menu and a click cannot reach it. Returns the outcome."""
MOVE_CURSOR_TO_END = """(() => {
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
"""Some fields (for example, number fields) do not expose their cursor; the key `End` moves it there."""
LOADING_EVENTS = ("Page.frameRequestedNavigation", "Page.frameStartedNavigating", "Page.frameStartedLoading")
LOADED_EVENTS = ("Page.frameStoppedLoading", "Page.frameDetached")


class ElementGoneError(Exception):
    """An element has left the page, or has no area to click on."""


class Tab:
    """One tab of a session. Call `attach` before any other method.

    Args:
        page: Playwright's page of the tab.
        paint_scale: size at which the page is painted, relative to the viewport. Its layout does not change.
    """

    def __init__(self, page: Page, paint_scale: float = 1.0) -> None:
        self.page, self._paint_scale = page, paint_scale
        self._client: CDPSession | None = None
        self._loading_frames: set[str] = set()
        self._requested_url = ""
        self._window_deadline = 0.0
        self._main_frame = ""
        self._numbers = NodeNumbers()

    @property
    def loading(self) -> bool:
        """True while a frame loads or a window that the page has opened is awaited."""
        return bool(self._loading_frames) or time.monotonic() < self._window_deadline

    async def attach(self) -> None:
        """Subscribe to the events of the page; a second call has no effect."""
        if self._client is not None:
            return
        client = await self.page.context.new_cdp_session(self.page)
        for name in LOADING_EVENTS:
            client.on(name, self._on_loading)
        for name in LOADED_EVENTS:
            client.on(name, self._on_loaded)
        client.on("Page.frameNavigated", self._on_navigated)
        client.on("Page.windowOpen", self._on_window_open)
        await client.send("Page.enable")
        if (size := self.page.viewport_size) and self._paint_scale != 1:
            screen = {"screenWidth": size["width"], "screenHeight": size["height"]}
            metrics = {**size, **screen, "deviceScaleFactor": 1, "mobile": False, "scale": self._paint_scale}
            await client.send("Emulation.setDeviceMetricsOverride", metrics)
        tree = await client.send("Page.getFrameTree")
        self._main_frame = tree["frameTree"]["frame"]["id"]
        self._client = client

    def stop_waiting_for_window(self) -> None:
        """Record that a window has opened, so that this page no longer waits for one."""
        self._window_deadline = 0.0

    async def title(self) -> str:
        """Return the title, or "" if the page does not answer in time."""
        try:
            async with asyncio.timeout(TITLE_TIMEOUT_S):
                return " ".join((await self.page.title()).split())
        except (TimeoutError, Error):
            return ""

    async def settle(self, busy: Callable[[], bool], timeout_s: float) -> None:
        """Wait until nothing loads, the network is idle and the document is stable, but at most `timeout_s`.

        Args:
            busy: returns True while the network is in use.
            timeout_s: maximum time to wait, in seconds.

        Raises:
            EnvError: the page does not answer, or a requested document has not loaded.
        """
        deadline = time.monotonic() + timeout_s
        while (left := deadline - time.monotonic()) > 0:
            if self.loading or busy():
                await asyncio.sleep(min(POLL_S, left))
                continue
            with suppress(TimeoutError):  # the old document may not answer while the next one loads
                async with asyncio.timeout(left):
                    await self._wait_until_stable()
            if not (self.loading or busy()):
                return
        if self._requested_url:
            raise EnvError(f"{self._requested_url[:200]} did not come within {timeout_s:g} s.")

    async def read(
        self, size: tuple[int, int] | None, show_options: bool = False, browser_numbers: bool = False
    ) -> tuple[str, PageText]:
        """Return the title and the text of the page.

        Args:
            size: width and height of the viewport in CSS pixels; None to read the whole page.
            show_options: show the options of closed lists.
            browser_numbers: use the browser's node numbers.

        Raises:
            EnvError: the page cannot be read.
        """
        for tries_left in (2, 1, 0):
            try:
                # This order numbers the nodes in document order. An enabled accessibility domain would number them
                # while the page loads, and differently each time.
                snapshot, tree = await asyncio.gather(
                    self._send("DOMSnapshot.captureSnapshot", computedStyles=[]),
                    self._send("Accessibility.getFullAXTree"),
                )
                document = snapshot["documents"][0]
                index = document.get("title", -1)
                title = " ".join(snapshot["strings"][index].split()) if index >= 0 else ""
                numbers = None if browser_numbers else self._numbers
                return title, build_page_text(tree["nodes"], layout_rects(document), size, show_options, numbers)
            except (Error, KeyError, IndexError) as error:  # the document was replaced during the two commands
                if not tries_left or self.page.is_closed():
                    raise EnvError(f"the page cannot be read: {str(error).partition(chr(10))[0]}") from error
                await asyncio.sleep(POLL_S)
        raise AssertionError

    async def click_point(self, backend_id: int) -> tuple[float, float]:
        """Scroll an element into view and return the point to click, in CSS pixels relative to the viewport.

        Raises:
            ElementGoneError: the element has left the page, or has no area.
        """
        try:
            await self._send("DOM.scrollIntoViewIfNeeded", backendNodeId=backend_id)
            quads = (await self._send("DOM.getContentQuads", backendNodeId=backend_id))["quads"]
        except Error as error:
            raise _element_error(error) from error
        for quad in quads:
            xs, ys = quad[0::2], quad[1::2]
            if max(xs) - min(xs) > 0 and max(ys) - min(ys) > 0:
                return sum(xs) / 4, sum(ys) / 4
        raise ElementGoneError

    async def move_mouse(self, x: float, y: float, click: bool = False) -> None:
        """Move the mouse to a point in CSS pixels relative to the viewport, and click there if `click` is set."""
        mouse, scale = self.page.mouse, self._paint_scale  # the browser expects coordinates of the painted page
        await (mouse.click if click else mouse.move)(x * scale, y * scale)

    async def select_option(self, backend_id: int, label: str | None) -> str:
        """Select an option of a list.

        Args:
            backend_id: node of the option, or of the list if `label` is given.
            label: label of the option, or its beginning.

        Returns:
            `chosen`, `disabled`, `missing` if the list has no such option, or `none` if the node is not a list or an
            option.

        Raises:
            ElementGoneError: the element has left the page.
        """
        try:
            node = await self._send("DOM.resolveNode", backendNodeId=backend_id)
            response = await self._send(
                "Runtime.callFunctionOn",
                objectId=node["object"]["objectId"],
                functionDeclaration=SELECT_OPTION,
                arguments=[{"value": label}],
                returnByValue=True,
                userGesture=True,
            )
        except Error as error:
            raise _element_error(error) from error
        return str(response["result"].get("value", "none"))

    async def move_cursor_to_end(self) -> None:
        """Move the cursor to the end of the focused field; text that the page has selected stays selected."""
        with suppress(Error):  # the click has opened another page
            response = await self._send("Runtime.evaluate", expression=MOVE_CURSOR_TO_END, returnByValue=True)
            if response["result"].get("value") == "by key":
                await self.page.keyboard.press("End")

    async def history(self) -> tuple[bool, bool]:
        """Return True for each direction, back and forward, in which the history has a page."""
        response = await self._send("Page.getNavigationHistory")
        current = response["currentIndex"]
        first = int(response["entries"][0]["url"] == "about:blank")  # a new tab starts with this entry
        return current > first, current + 1 < len(response["entries"])

    async def scroll(self, sign: int) -> None:
        """Scroll by the height of the viewport, down for 1 and up for -1."""
        await self._send("Runtime.evaluate", expression=f"({SCROLL})({sign})")

    async def _wait_until_stable(self) -> None:
        """Wait until the document stops changing or is replaced."""
        with suppress(Error):
            await self._send("Runtime.evaluate", expression=WAIT_UNTIL_STABLE, awaitPromise=True, returnByValue=True)

    async def _send(self, method: str, **parameters: Any) -> Any:
        assert self._client is not None
        try:
            async with asyncio.timeout(PROTOCOL_TIMEOUT_S):
                # The public `send` searches the whole response, some ten thousand values, for Playwright's own
                # objects. The protocol has none, and the search takes half of the time of reading a page.
                return await self._client._impl_obj.send(method=method, params=parameters, timeout=0)
        except TimeoutError:
            raise EnvError(
                f"the page {self.page.url[:200]} does not answer: {method} took more than {PROTOCOL_TIMEOUT_S:g} s."
            ) from None

    def _on_window_open(self, event: dict[str, Any]) -> None:
        """Wait for the window that the page opens; a blocked window never arrives."""
        self._window_deadline = time.monotonic() + WINDOW_OPEN_S

    def _on_loading(self, event: dict[str, Any]) -> None:
        self._loading_frames.add(event["frameId"])
        if event["frameId"] == self._main_frame and "url" in event:
            self._requested_url = event["url"]

    def _on_loaded(self, event: dict[str, Any]) -> None:
        self._loading_frames.discard(event["frameId"])
        if event["frameId"] == self._main_frame:
            self._requested_url = ""

    def _on_navigated(self, event: dict[str, Any]) -> None:
        if event["frame"]["id"] == self._main_frame:
            self._requested_url = ""
            self._numbers.reset()


def _element_error(error: Error) -> Exception:
    """Return the meaning of an error of a command on an element: the page has closed, or the element is gone."""
    return error if "closed" in error.message else ElementGoneError()
