"""Login of a browser context to its network proxy, so that the proxy serves no other process of the machine.

Playwright's own proxy credentials would pause every request of the context. Here only start pages are paused:
Chromium keeps the credentials of the proxy for the whole context and sends them with all later requests.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from playwright.async_api import CDPSession, Error, Page

from env_adapters.webarena.browser.network_proxy import USER, NetworkProxy

_DETACHING: set[asyncio.Task[None]] = set()
"""Sessions that are being closed; the event loop keeps no reference to a task."""


@asynccontextmanager
async def proxy_login(page: Page, proxy: NetworkProxy) -> AsyncIterator[None]:
    """Log in to the proxy with the page that is opened inside the `async with` block.

    Args:
        page: tab that opens the page.
        proxy: network proxy of the context.
    """
    client = await page.context.new_cdp_session(page)
    answers: set[asyncio.Task[None]] = set()

    def send(command: str, request: dict[str, Any], **arguments: Any) -> None:
        async def answer() -> None:
            with suppress(Error):  # the request has ended, or the page has closed
                await client.send(command, {"requestId": request["requestId"], **arguments})

        task = asyncio.ensure_future(answer())
        answers.add(task)
        task.add_done_callback(answers.discard)

    credentials = {"response": "ProvideCredentials", "username": USER, "password": proxy.password}
    client.on("Fetch.requestPaused", lambda request: send("Fetch.continueRequest", request))
    client.on(
        "Fetch.authRequired",
        lambda request: send(
            "Fetch.continueWithAuth",
            request,
            authChallengeResponse=credentials
            if request["authChallenge"].get("source") == "Proxy"
            else {"response": "Default"},
        ),
    )
    pages = {"urlPattern": "*", "resourceType": "Document"}
    await client.send("Fetch.enable", {"handleAuthRequests": True, "patterns": [pages]})
    yield
    leaving = asyncio.ensure_future(_detach(client))  # ends only when the document that the page loads next responds
    _DETACHING.add(leaving)
    leaving.add_done_callback(_DETACHING.discard)


async def _detach(client: CDPSession) -> None:
    with suppress(Error):  # the page has closed
        await client.detach()
