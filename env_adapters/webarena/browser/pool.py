"""The browsers of a process: each a Chromium that holds many contexts, is watched, replaced when worn, or killed.

Playwright's async API lives on one event loop, so there is one, in a thread of its own; sessions of any loop call into
it by `BrowserPool.run`. Knows contexts, not pages.
"""

import asyncio
import atexit
import gc
import logging
import secrets
import threading
import time
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

from playwright.async_api import BrowserContext, Error, Playwright, StorageState, async_playwright

from env_adapters.webarena.browser.chromium import find_chromium
from env_adapters.webarena.browser.process import BrowserLimits, RunningBrowser, end_family, leader
from verl_agent.errors import EnvError

T = TypeVar("T")
ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--no-pings",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-breakpad",
    "--disable-domain-reliability",
    "--webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)
"""Names are resolved by no browser: the fences resolve those of the sites. What does not go through a fence fails."""
DEAD_END = "http://127.0.0.1:9"
"""Proxy of what belongs to no context; nothing listens there."""
MARK = "--verl-agent-browser"
START_S = 30.0
CLOSE_S = 3.0
"""Seconds that closing may take; an episode gives its environment five."""
DIED = "the browser of this session has ended, and the next session gets a new one"
log = logging.getLogger(__name__)


class RefusedError(EnvError):
    """A browser that works refuses the cookies or the local storage that a context should begin with."""


class BrowserPool:
    """Chromiums that are started when they are needed.

    Args:
        limits: of each.
    """

    def __init__(self, limits: BrowserLimits) -> None:
        self.limits = limits
        self.browsers: list[RunningBrowser] = []
        self.loop = asyncio.new_event_loop()
        self._playwright: Playwright | None = None
        self._starting = asyncio.Lock()
        self._watcher: asyncio.Task[None] | None = None
        # A page comes as ten thousand small objects, for which the collector would look through all that was imported
        # again and again: most of the time that reading the answer takes.
        gc.freeze()
        threading.Thread(target=self.loop.run_forever, name="browsers", daemon=True).start()
        atexit.register(self.shutdown)

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run work on the loop of the browsers, from any other; cancelling the call cancels the work."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self.loop))

    async def context(self, proxy: str, size: tuple[int, int], state: StorageState | None) -> "ContextLease":
        """A fresh context, isolated from all others.

        Args:
            proxy: through which all goes that it sends.
            size: of its viewport, CSS pixels.
            state: cookies and local storage that it begins with.

        Raises:
            ConfigError: no Chromium on this machine.
            RefusedError: `state` is none that a context could begin with.
            EnvError: it does not start.
        """
        for last in (False, True):
            refused = False
            browser = await self._free_browser()
            browser.open += 1
            browser.opened += 1
            context: BrowserContext | None = None
            try:
                async with asyncio.timeout(START_S):
                    context = await browser.browser.new_context(
                        viewport={"width": size[0], "height": size[1]},
                        device_scale_factor=1,
                        storage_state=state,
                        proxy={"server": proxy, "bypass": "<-loopback>"},
                        service_workers="block",
                        accept_downloads=False,
                        permissions=[],
                        locale="en-US",
                        timezone_id="UTC",
                        reduced_motion="reduce",  # nobody sees a transition, and each of its frames is computed
                    )
                return ContextLease(self, browser, context)
            except (TimeoutError, Error) as error:
                if not await browser.answers(CLOSE_S):
                    self._drop(browser)
                elif isinstance(error, Error) and state is not None:
                    refused = True
                    raise RefusedError(_first_line(error)) from error
                if last:
                    raise EnvError(f"the browser gave no new context: {_first_line(error)}") from error
            finally:
                if context is None:
                    if not refused:  # failed, or cancelled: what may still come lies in no room
                        self.retire(browser)
                    self.leave(browser)
        raise AssertionError

    def leave(self, browser: RunningBrowser) -> None:
        """One of its contexts has closed."""
        browser.open -= 1
        if browser.opened >= self.limits.lifetime:
            browser.retired = True
        if browser.retired and not browser.open and browser in self.browsers:
            self.browsers.remove(browser)
            self.loop.create_task(_end(browser))

    def retire(self, browser: RunningBrowser) -> None:
        """Give it no more contexts, and end it after its last one."""
        browser.retired = True

    def shutdown(self) -> None:
        """End all; works at the exit of the process, and twice."""
        if not self.loop.is_running():
            return
        with suppress(Exception):
            asyncio.run_coroutine_threadsafe(self._shutdown(), self.loop).result(timeout=2 * CLOSE_S)
        for browser in self.browsers:
            browser.kill()
        self.loop.call_soon_threadsafe(self.loop.stop)

    async def _shutdown(self) -> None:
        if self._watcher is not None:
            self._watcher.cancel()
        await asyncio.gather(*map(_end, self.browsers))
        self.browsers.clear()
        if self._playwright is not None:
            await self._playwright.stop()

    async def _free_browser(self) -> RunningBrowser:
        async with self._starting:
            for dead in [one for one in self.browsers if not one.alive]:
                self._drop(dead)
            room = [one for one in self.browsers if self._has_room(one)]
            if room:
                return min(room, key=lambda one: one.open)
            self.browsers.append(await self._start())
            return self.browsers[-1]

    def _has_room(self, browser: RunningBrowser) -> bool:
        worn = browser.retired or browser.opened >= self.limits.lifetime
        return not worn and browser.open < self.limits.contexts

    async def _start(self) -> RunningBrowser:
        command = find_chromium()
        mark = f"{MARK}={secrets.token_hex(8)}"
        started = None
        try:
            async with asyncio.timeout(START_S):
                if self._playwright is None:
                    self._playwright = await async_playwright().start()
                browser = await self._playwright.chromium.launch(
                    executable_path=command, args=[*ARGUMENTS, mark], proxy={"server": DEAD_END}, handle_sigint=False
                )
                started = RunningBrowser(browser, await browser.new_browser_cdp_session(), leader(mark))
        except (TimeoutError, Error) as error:
            raise EnvError(f"{command} does not start: {_first_line(error)}") from error
        finally:
            if started is None:
                await self._give_up(mark)
        if self._watcher is None:
            self._watcher = self.loop.create_task(self._watch())
        return started

    async def _give_up(self, mark: str) -> None:
        """End what a start that failed has left: a browser, and a driver that drives no other one."""
        with suppress(EnvError):
            end_family(leader(mark))
        if self._playwright is not None and not self.browsers:
            driver, self._playwright = self._playwright, None
            with suppress(Exception):
                await driver.stop()

    async def _watch(self) -> None:
        """Kill browsers that hang, and give no more contexts to those that have grown."""
        while True:
            await asyncio.sleep(self.limits.ping_s)
            await asyncio.gather(*map(self._look_at, list(self.browsers)))

    async def _look_at(self, browser: RunningBrowser) -> None:
        if not browser.alive or not await browser.answers(self.limits.frozen_s):
            log.warning("a browser with %d sessions does not answer, and is killed", browser.open)
            self._drop(browser)
            return
        if browser.retired and not browser.open and browser in self.browsers:
            self.browsers.remove(browser)
            await _end(browser)
            return
        if time.monotonic() < browser.weigh_at:
            return
        browser.weigh_at = time.monotonic() + self.limits.weigh_s
        taken = await asyncio.to_thread(browser.memory_mb)
        if taken > self.limits.memory_mb and not browser.retired:
            log.info("a browser holds %.0f MiB and takes no more sessions", taken)
            browser.retired = True

    def _drop(self, browser: RunningBrowser) -> None:
        browser.kill()
        if browser in self.browsers:
            self.browsers.remove(browser)


@dataclass(frozen=True, slots=True)
class ContextLease:
    """A context, and the browser that it lies in."""

    browser_pool: BrowserPool
    browser: RunningBrowser
    context: BrowserContext

    async def close(self) -> None:
        """Close the context; a browser that cannot is given no more, and killed if it stays that way."""
        try:
            async with asyncio.timeout(CLOSE_S):
                await self.context.close()
        except (TimeoutError, Error):
            self.browser_pool.retire(self.browser)
        finally:
            self.browser_pool.leave(self.browser)


@cache
def browser_pool(limits: BrowserLimits) -> BrowserPool:
    """The farm that the sessions of this process share."""
    return BrowserPool(limits)


async def _end(browser: RunningBrowser) -> None:
    try:
        async with asyncio.timeout(CLOSE_S):
            await browser.browser.close()
    except (TimeoutError, Error):
        pass
    finally:
        browser.kill()


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
