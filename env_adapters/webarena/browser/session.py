"""One episode's browser: a context behind a fence, its tabs and the actions on them. Knows no tasks, no rewards."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from playwright.async_api import Dialog, Download, Error, Page, StorageState

from env_adapters.webarena.browser.accessibility_tree import Element, tab_line
from env_adapters.webarena.browser.actions import begin, enter, go, point, reason_of, travel
from env_adapters.webarena.browser.grammar import Action, ActionError
from env_adapters.webarena.browser.network_proxy import Address, NetworkProxy
from env_adapters.webarena.browser.pool import DIED, BrowserPool, ContextLease
from env_adapters.webarena.browser.snapshot import Snapshot, View
from env_adapters.webarena.browser.tab import ANSWER_S, POLL_S, Tab
from env_adapters.webarena.browser.tabs import MAX_TABS, Tabs
from verl_agent.errors import EnvError

LEAVING_S = 0.5
MAX_POPUPS = 20
"""Windows that pages may open, or boxes that they may show, during one action, before the episode ends."""


class BrowserSession:
    """One episode's browser. `start` comes first, `close` last; all calls on the loop of the farm.

    Args:
        farm: gives the context.
        routes: where each allowed site listens, see `NetworkProxy`.
        view: how pages are shown.
    """

    def __init__(self, browser_pool: BrowserPool, routes: Mapping[str, Address], view: View) -> None:
        self.fence = NetworkProxy(routes)
        self.view = view
        self._farm = browser_pool
        self._room: ContextLease | None = None
        self._tabs = Tabs()
        self._elements: Mapping[str, Element] = {}
        self._notes: list[str] = []
        self._popups = 0
        self._ours = 0
        self._background: set[asyncio.Task[None]] = set()
        self._fault = ""

    @property
    def tab(self) -> Tab:
        """The tab that is worked in."""
        if not self._tabs:
            raise EnvError(self._fault or DIED)
        return self._tabs.here

    @property
    def _alive(self) -> bool:
        return self._room is not None and self._room.browser.alive

    @property
    def page(self) -> Page:
        """Playwright's view of it."""
        return self.tab.page

    async def start(self, urls: Sequence[str], state: StorageState | None = None) -> Snapshot:
        """Open the start pages, each in a tab, and show the first.

        Args:
            urls: at least one.
            state: cookies and local storage to begin with.

        Raises:
            ConfigError: no Chromium.
            EnvError: a page does not come, or is an error.
        """
        await self.fence.start()
        self._room = await self._farm.context(self.fence.url, self.view.size, state)
        self._room.context.on("page", self._note_page)
        for url in urls:
            page = await self._guard(self._room.context.new_page())
            tab = self._tabs.of(page)
            await self._guard(tab.attach())
            await begin(tab, url, self.fence, self.view.settle_s)
            await self._guard(tab.settle(lambda: self.fence.traffic.busy, self.view.settle_s))
        return await self._see()

    async def act(self, action: Action) -> Snapshot:
        """Carry out an action and show what comes of it.

        Raises:
            ActionError: it cannot be carried out on this page.
            EnvError: the browser, a site or a page failed.
        """
        self._notes, self._popups = [], 0
        if not self._tabs and self._alive:
            self.check()
            raise ActionError("The page had closed its tab.")
        before, tab = self.fence.traffic.refusals, self.tab
        try:
            async with asyncio.timeout(self.view.settle_s + ANSWER_S):
                await self._guard(self._do(action))
        except TimeoutError:
            self.check()
            raise EnvError(f"the page {tab.page.url[:200]} does not answer to {action.kind}.") from None
        except EnvError as error:
            if not await self._left(tab, error):
                raise
        sight = await self._see()
        if self.fence.traffic.refusals > before and action.kind == "goto" and not self.fence.allows(sight.url):
            raise ActionError("That address is outside the sites of this task.")
        return sight

    async def look(self) -> Snapshot:
        """Show the current tab as it is now."""
        self._notes, self._popups = [], 0
        return await self._see()

    async def screenshot(self, path: Path) -> None:
        """Write a picture of the viewport."""
        with suppress(Error):
            await self.page.screenshot(path=path)

    def words_of(self, element: str) -> str:
        """What an id stood for in the last text, "" if for nothing."""
        return self._elements[element].words if element in self._elements else ""

    def check(self) -> None:
        """Raise an EnvError unless sites and pages have done their part so far."""
        if self.fence.traffic.down:
            raise EnvError(f"a site does not answer: {self.fence.traffic.down}")
        if self._fault:
            raise EnvError(self._fault)

    async def keep_tab(self) -> None:
        """Open an empty tab where pages have closed the last one."""
        if not self._tabs:
            self.check()
            await self._guard(self._open_tab())
            self._note("The last tab was closed by its page; this one is empty.")

    async def extra_page(self) -> Page:
        """A page in the same context that is no tab of the agent's, for evaluators; to be closed by the caller."""
        assert self._room is not None
        self._ours += 1
        try:
            return await self._room.context.new_page()
        finally:
            self._ours -= 1

    async def close(self) -> None:
        """Give the context back. May be called more than once."""
        room, self._room = self._room, None
        try:
            if room is not None:
                await room.close()
        finally:
            await self.fence.close()

    async def _do(self, action: Action) -> None:
        match action.kind:
            case "click" | "hover":
                await point(self.tab, self._find(action.element), action)
            case "type":
                await enter(self.tab, self._find(action.element), action)
            case "press":
                await self.page.keyboard.press(action.text)
            case "scroll":
                await self.tab.scroll(1 if action.text == "down" else -1)
            case "goto":
                self._note(await go(self.tab, action.text, self.fence, self.view.settle_s))
            case "go_back" | "go_forward":
                self._note(await travel(self.tab, action.kind, self.view.settle_s))
            case "new_tab":
                await self._open_tab()
            case "close_tab":
                await self._close_tab()
            case "tab_focus":
                self._tabs.focus(int(action.text))
                await self.page.bring_to_front()
            case _:
                raise ActionError(f"{action.kind} cannot be carried out on a page.")

    async def _open_tab(self) -> None:
        if len(self._tabs) >= MAX_TABS:
            raise ActionError(f"There are {MAX_TABS} tabs already. Close one with close_tab.")
        assert self._room is not None
        page = await self._room.context.new_page()
        self._popups -= 1
        self._tabs.work_in(self._tabs.of(page))

    async def _close_tab(self) -> None:
        tab = self.tab
        self._tabs.forget(tab)
        await tab.page.close()
        if not self._tabs:
            await self._open_tab()
        self._tabs.focus(len(self._tabs) - 1)
        await self.page.bring_to_front()

    def _find(self, element: str) -> Element:
        if element not in self._elements:
            raise ActionError(f"There is no element [{element}] in the observation.")
        return self._elements[element]

    async def _see(self) -> Snapshot:
        """Show the current tab; where it closes itself, the one that is left, and an empty one after the last."""
        while True:
            await self.keep_tab()
            tab = self.tab
            try:
                return await self._read()
            except EnvError as error:
                if not await self._left(tab, error):
                    raise

    async def _left(self, tab: Tab, error: EnvError) -> bool:
        """Whether all that went wrong is that a tab has closed itself; the browser may say so a moment later."""
        deadline = time.monotonic() + LEAVING_S
        while "closed" in str(error) and not tab.page.is_closed() and time.monotonic() < deadline:
            await asyncio.sleep(POLL_S)
        return tab.page.is_closed() and self._alive and not self._fault and not self.fence.traffic.down

    async def _read(self) -> Snapshot:
        """Wait until the current tab has settled, and read it."""
        await self._guard(self.tab.attach())
        await self._guard(self.tab.settle(lambda: self.fence.traffic.busy, self.view.settle_s))
        self.check()
        size = None if self.view.whole else self.view.size
        title, text = await self._guard(self.tab.read(size, self.view.show_options, self.view.browser_numbers))
        titles = [title if tab is self.tab else await tab.title() for tab in self._tabs]
        self._elements = text.elements
        self.check()
        return Snapshot(tab_line(titles, self._tabs.current), text, self.page.url, tuple(self._notes))

    async def _guard(self, work: Any) -> Any:
        """Name what goes wrong with the browser, and end what a page keeps doing."""
        try:
            return await work
        except Error as error:
            self.check()
            if not self._alive:
                raise EnvError(DIED) from error
            reason = reason_of(error)
            if "Unknown key" in reason:
                raise ActionError(f"{reason}.") from error
            raise EnvError(f"the browser: {reason}") from error

    def _note_page(self, page: Page) -> None:
        """A tab has opened: by an action, or by a page."""
        if self._ours:
            return
        self._popups += 1
        for other in self._tabs:
            other.opened()
        if len(self._tabs) >= MAX_TABS or self._popups > MAX_POPUPS:
            self._note("A page tried to open more tabs than there may be.")
            if self._popups > MAX_POPUPS:
                self._fail(f"a page opened more than {MAX_POPUPS} windows at once.")
            self._later(page.close())
            return
        tab = self._tabs.add(page)
        page.on("dialog", self._note_dialog)
        page.on("download", self._note_download)
        page.on("crash", lambda _: self._fail(f"the page {page.url[:200]} crashed."))
        page.on("close", lambda _: self._tabs.forget(tab))

    async def _note_dialog(self, dialog: Dialog) -> None:
        """Answer a box at once, since the page waits: as Playwright does for WebArena, by dismissing it."""
        self._popups += 1
        if self._popups > MAX_POPUPS:
            self._fail(f"a page showed more than {MAX_POPUPS} boxes at once.")
        leaving = dialog.type == "beforeunload"
        if not leaving:
            self._note(f"A box ({dialog.type}) said {dialog.message[:200]!r}; it was closed.")
        await _quietly(dialog.accept() if leaving or dialog.type == "alert" else dialog.dismiss())

    def _note_download(self, download: Download) -> None:
        self._note(f"The download of {download.suggested_filename[:100]!r} was refused: downloads are off.")

    def _note(self, sentence: str) -> None:
        if sentence and sentence not in self._notes and len(self._notes) < 5:
            self._notes.append(sentence)

    def _later(self, work: Any) -> None:
        """Do something that nobody waits for."""
        task = asyncio.ensure_future(_quietly(work))
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def _fail(self, why: str) -> None:
        """End the episode: nothing that is asked of the context from now on is answered."""
        if not self._fault and self._room is not None:
            self._fault = why
            self._later(self._room.context.close())


async def _quietly(work: Any) -> None:
    with suppress(Error):
        await work
