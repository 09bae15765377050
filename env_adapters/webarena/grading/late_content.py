"""Wait for content that a page adds after it has settled, in the page's virtual time.

WebArena sleeps 3 seconds before it evaluates a page. Here the page's own clock is moved forward instead: Chromium runs
the timers that are due, one after another, and stops the clock while a request is pending. This takes about 20 ms.
"""

import asyncio
import time
from contextlib import suppress

from playwright.async_api import Page

LATE_CONTENT_S = 3.0
"""Seconds after loading, or after the last action, at which a page is evaluated; WebArena sleeps this long."""


async def let_time_pass(page: Page, since: float) -> None:
    """Return when `LATE_CONTENT_S` have passed on a page, whose clock then stands still.

    A page with a request that never ends (for example, an event stream) is waited for in real time.

    Args:
        page: loaded page.
        since: monotonic time in seconds at which the page was loaded or acted on.

    Raises:
        playwright.async_api.Error: the page was closed.
    """
    left = LATE_CONTENT_S - (time.monotonic() - since)
    if left <= 0 or not page.url.startswith("http"):
        return
    client = await page.context.new_cdp_session(page)
    passed = asyncio.Event()
    client.on("Emulation.virtualTimeBudgetExpired", lambda _: passed.set())
    await client.send(
        "Emulation.setVirtualTimePolicy", {"policy": "pauseIfNetworkFetchesPending", "budget": 1000 * left}
    )
    with suppress(TimeoutError):
        async with asyncio.timeout(left):
            await passed.wait()
