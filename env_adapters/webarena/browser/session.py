"""Browser session of one episode: a context behind a network proxy, its tabs, and the actions on them."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from playwright.async_api import BrowserContext, Error, Page, StorageState

from env_adapters.webarena.browser import actions
from env_adapters.webarena.browser.accessibility_tree import Element, tab_line
from env_adapters.webarena.browser.driver import START_TIMEOUT_S
from env_adapters.webarena.browser.grammar import BrowserAction, PageActionError
from env_adapters.webarena.browser.network_proxy import NetworkProxy, SiteAddress
from env_adapters.webarena.browser.page_events import PageEvents
from env_adapters.webarena.browser.pool import BROWSER_ENDED, BrowserPool, ContextLease
from env_adapters.webarena.browser.proxy_login import proxy_login
from env_adapters.webarena.browser.snapshot import PageView, Snapshot
from env_adapters.webarena.browser.tab import POLL_S, PROTOCOL_TIMEOUT_S, Tab
from env_adapters.webarena.browser.tabs import MAX_TABS, Tabs
from verl_agent.errors import EnvError


class BrowserSession:
    """Browser session of one episode. Call `start` first, `close` last, and all methods on the loop of the pool.

    Args:
        network_log: file for all requests but those of styles, scripts, images and fonts, in the format HAR. `close`
            writes it.
    """

    def __init__(
        self,
        browser_pool: BrowserPool,
        routes: Mapping[str, SiteAddress],
        view: PageView,
        network_log: Path | None = None,
    ) -> None:
        self.network_proxy = NetworkProxy(routes)
        self.view, self.network_log = view, network_log
        self._browser_pool = browser_pool
        self._lease: ContextLease | None = None
        self._tabs = Tabs(view.paint_scale)
        self._events = PageEvents(self._tabs)
        self._elements: Mapping[str, Element] = {}

    @property
    def tab(self) -> Tab:
        if not self._tabs:
            raise EnvError(self._events.error or BROWSER_ENDED)
        return self._tabs.current

    @property
    def _context(self) -> BrowserContext:
        """Context of the session, which exists from `start` to `close`."""
        if self._lease is None:
            raise EnvError(BROWSER_ENDED)
        return self._lease.context

    @property
    def _alive(self) -> bool:
        return self._lease is not None and self._lease.browser.alive

    @property
    def _healthy(self) -> bool:
        """True if neither the browser nor a site nor a page has failed."""
        return self._alive and not (self._events.error or self.network_proxy.traffic.site_error)

    @property
    def page(self) -> Page:
        return self.tab.page

    async def start(self, urls: Sequence[str], state: StorageState | None = None) -> Snapshot:
        """Open each start page in a tab and return a snapshot of the first.

        Raises:
            ConfigError: Chromium is not installed.
            EnvError: a page does not load, or returns an HTTP error.
        """
        await self.network_proxy.start()
        self._lease = await self._browser_pool.lease(self.network_proxy.url, self.view.size, state, self.network_log)
        self._events.subscribe(self._context)
        for url in urls:
            limit_s = START_TIMEOUT_S + 2 * self.view.settle_s
            try:
                async with asyncio.timeout(limit_s):
                    await self._guard(self._open_start_page(url))
            except TimeoutError:
                raise EnvError(f"the browser did not open the start page {url} within {limit_s:g} s.") from None
        return await self._observe()

    async def act(self, action: BrowserAction) -> Snapshot:
        """Carry out an action and return a snapshot of the result.

        Raises:
            PageActionError: the action cannot be carried out on this page.
            EnvError: the browser, a site or a page failed.
        """
        self._events.start_action()
        if not self._tabs and self._lease is not None and await self._lease.browser.answers(PROTOCOL_TIMEOUT_S):
            self.check()
            raise PageActionError("The page had closed its tab.")
        traffic, tab = self.network_proxy.traffic, self.tab
        refusals = traffic.refusals
        try:
            async with asyncio.timeout(self.view.settle_s + PROTOCOL_TIMEOUT_S):
                await self._guard(self._execute(action))
        except TimeoutError:
            self.check()
            raise EnvError(f"the page {tab.url[:200]} does not answer to {action.kind}.") from None
        except EnvError as error:
            if not await self._tab_has_closed(tab, error):
                raise
        snapshot = await self._observe()
        if traffic.refusals > refusals and action.kind == "goto" and not self.network_proxy.allows(snapshot.url):
            raise PageActionError("That address is outside the sites of this task.")
        return snapshot

    async def observe(self) -> Snapshot:
        """Return a snapshot of the current tab."""
        self._events.start_action()
        return await self._observe()

    async def screenshot(self, path: Path) -> None:
        """Write a picture of the viewport to `path`."""
        with suppress(Error):
            await self.page.screenshot(path=path)

    def element(self, element_id: str) -> Element | None:
        """Return an element of the last snapshot, or None if the id is unknown."""
        return self._elements.get(element_id)

    def check(self) -> None:
        """Raise EnvError if a site or a page has failed."""
        if self.network_proxy.traffic.site_error:
            raise EnvError(f"a site does not answer: {self.network_proxy.traffic.site_error}")
        if self._events.error:
            raise EnvError(self._events.error)

    async def ensure_tab(self) -> None:
        """Attach the current tab; open an empty one first if pages have closed the last."""
        while True:
            if not self._tabs:
                self.check()
                await self._guard(self._open_tab())
                self._events.note("The last tab was closed by its page; this one is empty.")
            tab = self.tab
            try:
                await self.attach(tab)
                if self._tabs and tab is self.tab:
                    return
            except EnvError as error:
                if not await self._tab_has_closed(tab, error):
                    raise

    async def new_evaluator_page(self) -> Page:
        """Open a page for evaluators that is not a tab of the agent; the caller closes it."""
        with self._events.ignoring_pages():
            return await self._context.new_page()

    async def attach(self, tab: Tab) -> None:
        """Subscribe to the events of the page in a tab; a second call has no effect."""
        await self._guard(tab.attach())

    async def close(self) -> None:
        """Return the context to the pool and stop the proxy; a second call has no effect."""
        lease, self._lease = self._lease, None
        try:
            if lease is not None:
                await lease.close()
        finally:
            await self.network_proxy.close()

    async def _open_start_page(self, url: str) -> None:
        tab = self._tabs.of(page := await self._context.new_page())
        await self.attach(tab)
        async with proxy_login(page, self.network_proxy):
            await actions.open_start_page(tab, url, self.network_proxy, self.view.settle_s)
        await tab.settle(lambda: self.network_proxy.traffic.busy, self.view.settle_s)

    async def _execute(self, action: BrowserAction) -> None:
        match action.kind:
            case "click" | "hover":
                await actions.click_or_hover(self.tab, self._find(action.element_id), action)
            case "type":
                await actions.type_or_select(self.tab, self._find(action.element_id), action)
            case "press":
                await self.page.keyboard.press(action.text)
            case "scroll":
                await self.tab.scroll(1 if action.text == "down" else -1)
            case "goto":
                self._events.note(await actions.navigate(self.tab, action.text, self.network_proxy, self.view.settle_s))
            case "go_back" | "go_forward":
                self._events.note(await actions.navigate_history(self.tab, action.kind, self.view.settle_s))
            case "new_tab":
                await self._open_tab()
            case "close_tab":
                await self._close_tab()
            case "tab_focus":
                self._tabs.focus(int(action.text))
                await self.page.bring_to_front()
            case _:
                raise PageActionError(f"{action.kind} cannot be carried out on a page.")

    async def _open_tab(self) -> None:
        if len(self._tabs) >= MAX_TABS:
            raise PageActionError(f"There are {MAX_TABS} tabs already. Close one with close_tab.")
        page = await self._context.new_page()
        self._events.popups -= 1  # the agent has opened it
        self._tabs.switch_to(self._tabs.of(page))

    async def _close_tab(self) -> None:
        tab = self.tab
        self._tabs.remove(tab)
        await tab.page.close()
        if not self._tabs:
            await self._open_tab()
        self._tabs.focus(len(self._tabs) - 1)
        await self.page.bring_to_front()

    def _find(self, element_id: str) -> Element:
        if element_id not in self._elements:
            raise PageActionError(f"There is no element [{element_id}] in the observation.")
        return self._elements[element_id]

    async def _observe(self) -> Snapshot:
        """Return a snapshot of the current tab; if the tab closes itself, of the previous or an empty tab."""
        while True:
            await self.ensure_tab()
            tab = self.tab
            try:
                return await self._read()
            except EnvError as error:
                if not await self._tab_has_closed(tab, error):
                    raise

    async def _tab_has_closed(self, tab: Tab, error: EnvError) -> bool:
        """Return True if an error only means that the tab has closed itself, which is reported a moment later."""
        deadline = time.monotonic() + PROTOCOL_TIMEOUT_S
        while "closed" in str(error) and not tab.page.is_closed() and self._healthy and time.monotonic() < deadline:
            await asyncio.sleep(POLL_S)
        return tab.page.is_closed() and self._healthy

    async def _read(self) -> Snapshot:
        """Wait until the current tab has settled, and read it."""
        await self._guard(self.tab.settle(lambda: self.network_proxy.traffic.busy, self.view.settle_s))
        self.check()
        size = None if self.view.whole_page else self.view.size
        title, text = await self._guard(self.tab.read(size, self.view.show_options, self.view.browser_numbers))
        titles = [title if tab is self.tab else await tab.title() for tab in self._tabs]
        self._elements = text.elements
        self.check()
        return Snapshot(tab_line(titles, self._tabs.current_index), text, self.tab.url, tuple(self._events.notes))

    async def _guard(self, work: Any) -> Any:
        """Await `work` and convert errors of Playwright to EnvError, or to PageActionError for an unknown key."""
        try:
            return await work
        except Error as error:
            self.check()
            if not self._alive:
                raise EnvError(BROWSER_ENDED) from error
            reason = actions.error_reason(error)
            if "Unknown key" in reason:
                raise PageActionError(f"{reason}.") from error
            raise EnvError(f"the browser: {reason}") from error
