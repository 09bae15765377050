"""One tab of a browser: its text, its loading state, and operations on its elements through the DevTools protocol."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeVar

import msgspec
from playwright.async_api import Error, Page

from env_adapters.webarena.browser.accessibility_tree import (
    DomSnapshot,
    NodeNumbers,
    PageText,
    build_page_text,
    layout_rects,
)
from env_adapters.webarena.browser.background import run_in_background
from env_adapters.webarena.browser.devtools import DevToolsSession
from env_adapters.webarena.browser.navigation import Navigation
from env_adapters.webarena.browser.page_scripts import MOVE_CURSOR_TO_END, SCROLL, SELECT_OPTION, WAIT_UNTIL_STABLE
from env_adapters.webarena.browser.visible_nodes import read_nodes
from verl_agent.errors import EnvError

T = TypeVar("T")
POLL_S = 0.015
PROTOCOL_TIMEOUT_S = 8.0
"""Seconds after which a page that does not answer a DevTools command counts as hung."""
TITLE_TIMEOUT_S = 1.0


class ElementGoneError(Exception):
    """An element has left the page, or has no area to click on."""


class Tab:
    """One tab of a session. Call `attach` before any other method.

    Args:
        paint_scale: size at which the page is painted, relative to the viewport. Its layout does not change.
    """

    def __init__(self, page: Page, paint_scale: float = 1.0) -> None:
        self.page, self._paint_scale = page, paint_scale
        self._session: DevToolsSession | None = None
        self._numbers = NodeNumbers()
        self._navigation = Navigation(on_document=self._numbers.reset)

    @property
    def devtools(self) -> DevToolsSession:
        assert self._session is not None
        return self._session

    @property
    def url(self) -> str:
        """URL of the page, "" before `attach`. Playwright's `page.url` changes some milliseconds later."""
        return self._navigation.url

    async def attach(self) -> None:
        """Subscribe to the events of the page; a second call has no effect."""
        if self._session is None:
            self._session = await self._in_time("attaching", self._attach())

    async def _attach(self) -> DevToolsSession:
        client = await self.page.context.new_cdp_session(self.page)
        session = DevToolsSession(client)
        try:
            await self._subscribe(session)
        except BaseException:  # also of a timeout: nothing else ends this session
            run_in_background(client.detach())
            raise
        return session

    async def _subscribe(self, session: DevToolsSession) -> None:
        target = (await session.send("Target.getTargetInfo", dict))["targetInfo"]
        self._navigation.subscribe(session, target["targetId"])  # a page's target has the id of its main frame
        commands = [session.send("Page.enable", dict), session.send("Page.getFrameTree", dict)]
        if (size := self.page.viewport_size) and self._paint_scale != 1:
            screen = {"screenWidth": size["width"], "screenHeight": size["height"]}
            metrics = {**size, **screen, "deviceScaleFactor": 1, "mobile": False, "scale": self._paint_scale}
            commands.append(session.send("Emulation.setDeviceMetricsOverride", dict, **metrics))
        _, tree, *_ = await asyncio.gather(*commands)
        self._navigation.set_first_url(tree["frameTree"]["frame"])

    def stop_waiting_for_window(self) -> None:
        """Record that a window has opened, so that this page no longer waits for one."""
        self._navigation.window_deadline = 0.0

    async def title(self) -> str:
        """Return the title, or "" if the page does not answer in time."""
        try:
            async with asyncio.timeout(TITLE_TIMEOUT_S):
                return " ".join((await self.page.title()).split())
        except (TimeoutError, Error):
            return ""

    async def settle(self, busy: Callable[[], bool], timeout_s: float) -> None:
        """Wait until nothing loads, the network is idle and the document is stable, but at most `timeout_s`.

        Raises:
            EnvError: the page does not answer, or a requested document has not loaded.
        """
        deadline = time.monotonic() + timeout_s
        while (left := deadline - time.monotonic()) > 0:
            if self._navigation.loading or busy():
                await asyncio.sleep(min(POLL_S, left))
                continue
            with suppress(TimeoutError):  # the old document may not answer while the next one loads
                async with asyncio.timeout(left):
                    await self._wait_until_stable()
            if self._navigation.uncommitted:  # the driver reports a download, which this waits for
                self._navigation.uncommitted = False
                with suppress(Error, TimeoutError):
                    async with asyncio.timeout(TITLE_TIMEOUT_S):
                        await self.page.evaluate("0")
            if not (self._navigation.loading or busy()):
                return
        if requested := self._navigation.requested_url:
            raise EnvError(f"{requested[:200]} did not come within {timeout_s:g} s.")

    async def read(
        self, size: tuple[int, int] | None, show_options: bool = False, browser_numbers: bool = False
    ) -> tuple[str, PageText]:
        """Return the title and the text of the page.

        Raises:
            EnvError: the page cannot be read.
        """
        for tries_left in (2, 1, 0):
            try:
                # This order numbers the nodes in document order. An enabled accessibility domain would number them
                # while the page loads, and differently each time.
                snapshot = await self._send("DOMSnapshot.captureSnapshot", DomSnapshot, computedStyles=[])
                rects = layout_rects(snapshot.documents[0])
                shown = None if show_options else size  # options are shown wherever their list is
                nodes = await self._in_time("reading", read_nodes(self.devtools, snapshot, rects, shown))
                numbers = None if browser_numbers else self._numbers
                return snapshot.title, build_page_text(nodes, rects, size, show_options, numbers)
            except (Error, IndexError, msgspec.ValidationError) as error:  # the document was replaced meanwhile
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
            _, response = await asyncio.gather(
                self._send("DOM.scrollIntoViewIfNeeded", dict, backendNodeId=backend_id),
                self._send("DOM.getContentQuads", dict, backendNodeId=backend_id),
            )
        except Error as error:
            raise _element_error(error) from error
        quads: list[list[float]] = response["quads"]
        for quad in quads:
            xs, ys = quad[0::2], quad[1::2]
            if max(xs) - min(xs) > 0 and max(ys) - min(ys) > 0:
                return sum(xs) / 4, sum(ys) / 4
        raise ElementGoneError

    async def move_mouse(self, x: float, y: float, click: bool = False) -> None:
        """Move the mouse to a point in CSS pixels relative to the viewport, and click there if `click` is set."""
        scale = self._paint_scale  # the browser expects coordinates of the painted page
        at = {"x": x * scale, "y": y * scale}
        events: list[dict[str, Any]] = [{"type": "mouseMoved"}]
        if click:
            left = {"button": "left", "clickCount": 1}
            events += [{"type": "mousePressed", "buttons": 1, **left}, {"type": "mouseReleased", **left}]
        await asyncio.gather(*(self._send("Input.dispatchMouseEvent", dict, **event, **at) for event in events))

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
            node = await self._send("DOM.resolveNode", dict, backendNodeId=backend_id)
            response = await self._send(
                "Runtime.callFunctionOn",
                dict,
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
            response = await self._send("Runtime.evaluate", dict, expression=MOVE_CURSOR_TO_END, returnByValue=True)
            if response["result"].get("value") == "by key":
                await self.page.keyboard.press("End")

    async def history(self) -> tuple[bool, bool]:
        """Return True for each direction, back and forward, in which the history has a page."""
        response = await self._send("Page.getNavigationHistory", dict)
        current = response["currentIndex"]
        first = int(response["entries"][0]["url"] == "about:blank")  # a new tab starts with this entry
        return current > first, current + 1 < len(response["entries"])

    async def scroll(self, sign: int) -> None:
        """Scroll by the height of the viewport, down for 1 and up for -1."""
        await self._send("Runtime.evaluate", dict, expression=f"({SCROLL})({sign})")

    async def _wait_until_stable(self) -> None:
        """Wait until the document stops changing or is replaced."""
        command = {"expression": WAIT_UNTIL_STABLE, "awaitPromise": True, "returnByValue": True}
        with suppress(Error):
            await self._send("Runtime.evaluate", dict, **command)

    async def _send(self, method: str, result_type: type[T], /, **parameters: Any) -> T:
        return await self._in_time(method, self.devtools.send(method, result_type, **parameters))

    async def _in_time(self, method: str, work: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout(PROTOCOL_TIMEOUT_S):
                return await work
        except TimeoutError:
            url = (self.url or self.page.url)[:200]
            reason = f"{method} took more than {PROTOCOL_TIMEOUT_S:g} s"
            raise EnvError(f"the page {url} does not answer: {reason}.") from None


def _element_error(error: Error) -> Exception:
    """Return the meaning of an error of a command on an element: the page has closed, or the element is gone."""
    return error if "closed" in error.message else ElementGoneError()
