"""Login of a browser context to its network proxy, so that the proxy serves no other process of the machine.

Playwright's own proxy credentials would pause every request of the context. Here only start pages are paused:
Chromium keeps the credentials of the proxy for the whole context and sends them with all later requests.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from playwright.async_api import Page

from env_adapters.webarena.browser.background import run_in_background
from env_adapters.webarena.browser.network_proxy import USER, NetworkProxy


@asynccontextmanager
async def proxy_login(page: Page, proxy: NetworkProxy) -> AsyncIterator[None]:
    """Log in to the proxy with the page that is opened inside the `async with` block."""
    client = await page.context.new_cdp_session(page)

    def send(command: str, request: dict[str, Any], **arguments: Any) -> None:
        run_in_background(client.send(command, {"requestId": request["requestId"], **arguments}))

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
    run_in_background(client.detach())  # ends only when the document that the page loads next responds
