"""Pool of the browsers of a process. Each browser holds many contexts, is health-checked, and is retired or killed.

Playwright's async API is bound to one event loop. The pool runs this loop in a thread of its own, and sessions on other
loops call into it by `BrowserPool.run`.
"""

import asyncio
import atexit
import gc
import logging
import re
import threading
import time
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from playwright.async_api import BrowserContext, Error, StorageState

from env_adapters.webarena.browser.driver import START_TIMEOUT_S, PlaywrightDriver, error_summary
from env_adapters.webarena.browser.process import BrowserLimits, RunningBrowser
from verl_agent.errors import EnvError

T = TypeVar("T")
CLOSE_TIMEOUT_S = 3.0
"""Seconds that closing may take; an episode gives its environment five."""
NOT_STATIC = re.compile(r"^(?![^?#]*\.(?:css|js|png|jpe?g|gif|svg|woff2?|ttf|ico|webp)(?:[?#]|$))")
"""URLs of requests that a network log keeps."""
BROWSER_ENDED = "the browser of this session has ended, and the next session gets a new one"
log = logging.getLogger(__name__)


class RefusedStateError(EnvError):
    """A healthy browser refused the cookies or the local storage for a new context."""


class BrowserPool:
    """Pool of Chromiums that are started on demand."""

    def __init__(self, limits: BrowserLimits) -> None:
        self.limits = limits
        self.browsers: list[RunningBrowser] = []
        self.loop = asyncio.new_event_loop()
        self._driver = PlaywrightDriver()
        self._starting = asyncio.Lock()
        self._watcher: asyncio.Task[None] | None = None
        # The response with a page's nodes holds some ten thousand small objects. Their allocation triggers garbage
        # collections that scan all imported modules again, which takes most of the time of parsing the response.
        gc.freeze()
        threading.Thread(target=self.loop.run_forever, name="browsers", daemon=True).start()
        atexit.register(self.shutdown)

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the pool's event loop, from any other loop; cancelling the call cancels the coroutine."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self.loop))

    async def lease(
        self, proxy: str, size: tuple[int, int], state: StorageState | None, network_log: Path | None = None
    ) -> "ContextLease":
        """Return a lease of a fresh context, isolated from all others.

        Args:
            network_log: file for the requests, which is written when the context closes; None for no file.

        Raises:
            ConfigError: Chromium is not installed.
            RefusedStateError: the browser rejects `state`.
            EnvError: the browser or the context does not start.
        """
        for last in (False, True):
            refused = False
            browser = await self._available_browser()
            browser.open_contexts += 1
            browser.all_contexts += 1
            context: BrowserContext | None = None
            try:
                async with asyncio.timeout(START_TIMEOUT_S):
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
                        record_har_path=network_log,
                        record_har_content="embed",  # WebArena-Verified checks the responses to some requests
                        record_har_url_filter=NOT_STATIC,
                        reduced_motion="reduce",  # saves the computing of transitions, which no observation shows
                    )
                return ContextLease(self, browser, context)
            except (TimeoutError, Error) as error:
                if not await self._kill_if_hung(browser) and isinstance(error, Error) and state is not None:
                    refused = True
                    raise RefusedStateError(error_summary(error)) from error
                if last:
                    raise EnvError(f"the browser did not open a new context: {error_summary(error)}") from error
            finally:
                if context is None:
                    if not refused:  # failed or cancelled: the browser may still open a context that no lease holds
                        browser.retired = True
                    self.release(browser)
        raise AssertionError

    def release(self, browser: RunningBrowser) -> None:
        """Record that a context of the browser has closed; close the browser if it is retired and has no other."""
        browser.open_contexts -= 1
        if browser.all_contexts >= self.limits.max_contexts:
            browser.retired = True
        if browser.retired and not browser.open_contexts and browser in self.browsers:
            self.browsers.remove(browser)
            self.loop.create_task(_close(browser))

    def shutdown(self) -> None:
        """Close all browsers and the driver; a second call has no effect."""
        if not self.loop.is_running():
            return
        with suppress(Exception):  # at the exit of the process: all browsers are killed below
            asyncio.run_coroutine_threadsafe(self._shutdown(), self.loop).result(timeout=3 * CLOSE_TIMEOUT_S)
        for browser in self.browsers:
            browser.kill()
        self._driver.kill()
        self.loop.call_soon_threadsafe(self.loop.stop)

    async def _shutdown(self) -> None:
        if self._watcher is not None:
            self._watcher.cancel()
        await asyncio.gather(*map(_close, self.browsers))
        self.browsers.clear()
        await self._driver.stop()

    async def _available_browser(self) -> RunningBrowser:
        async with self._starting:
            for ended in [browser for browser in self.browsers if not browser.alive]:
                self._kill(ended)
            available = [browser for browser in self.browsers if self._has_capacity(browser)]
            if available:
                return min(available, key=lambda browser: browser.open_contexts)
            self.browsers.append(await self._start())
            return self.browsers[-1]

    def _has_capacity(self, browser: RunningBrowser) -> bool:
        retired = browser.retired or browser.all_contexts >= self.limits.max_contexts
        return not retired and browser.open_contexts < self.limits.max_open_contexts

    async def _start(self) -> RunningBrowser:
        started = None
        try:
            started = await self._driver.start_browser()
        finally:
            if started is None and not self.browsers:
                await self._driver.stop()
        if self._watcher is None:
            self._watcher = self.loop.create_task(self._watch())
        return started

    async def _watch(self) -> None:
        """Kill browsers that hang, and retire browsers that use too much memory."""
        while True:
            await asyncio.sleep(self.limits.ping_interval_s)
            await asyncio.gather(*map(self._check_health, list(self.browsers)))

    async def _check_health(self, browser: RunningBrowser) -> None:
        if await self._kill_if_hung(browser):
            return
        if browser.retired and not browser.open_contexts and browser in self.browsers:
            self.browsers.remove(browser)
            await _close(browser)
            return
        if time.monotonic() < browser.next_memory_check:
            return
        browser.next_memory_check = time.monotonic() + self.limits.memory_interval_s
        memory_mb = await asyncio.to_thread(browser.memory_mb)
        if memory_mb > self.limits.max_memory_mb and not browser.retired:
            log.info("a browser uses %.0f MiB and takes no more sessions", memory_mb)
            browser.retired = True

    async def _kill_if_hung(self, browser: RunningBrowser) -> bool:
        """Kill a browser that does not answer, or if the driver does not, the driver with all its browsers."""
        if await browser.answers(self.limits.ping_timeout_s):
            return False
        ended = [browser]
        if not await self._driver.answers(self.limits.ping_timeout_s):
            log.warning("Playwright's driver does not answer, and is killed with %d browsers", len(self.browsers))
            self._driver.kill()
            ended = list(self.browsers)
        for one in ended:
            log.warning("a browser with %d sessions does not answer, and is killed", one.open_contexts)
            self._kill(one)
        return True

    def _kill(self, browser: RunningBrowser) -> None:
        browser.kill()
        if browser in self.browsers:
            self.browsers.remove(browser)


@dataclass(frozen=True, slots=True)
class ContextLease:
    """Lease of one context of a browser of the pool."""

    browser_pool: BrowserPool
    browser: RunningBrowser
    context: BrowserContext

    async def close(self) -> None:
        """Close the context and retire its browser if that fails."""
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self.context.close()
        except (TimeoutError, Error):
            self.browser.retired = True
        finally:
            self.browser_pool.release(self.browser)


@cache
def browser_pool(limits: BrowserLimits) -> BrowserPool:
    """Return the pool that all sessions of this process share."""
    return BrowserPool(limits)


async def _close(browser: RunningBrowser) -> None:
    """Close a browser and kill whatever is left of it."""
    try:
        async with asyncio.timeout(CLOSE_TIMEOUT_S):
            await browser.browser.close()
    except (TimeoutError, Error):
        pass
    finally:
        browser.kill()
