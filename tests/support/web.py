"""Local web servers for tests, a canary for addresses that must not be reached, and browser sessions to play with."""

import asyncio
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from typing import Any

import pytest
from aiohttp import web

from env_adapters.webarena.browser.chromium import GET_CHROMIUM, installed_chromiums
from env_adapters.webarena.browser.grammar import parse_action
from env_adapters.webarena.browser.network_proxy import SiteAddress
from env_adapters.webarena.browser.pool import BrowserPool, browser_pool
from env_adapters.webarena.browser.process import BrowserLimits
from env_adapters.webarena.browser.session import BrowserSession
from env_adapters.webarena.browser.snapshot import PageView, Snapshot

needs_chromium = pytest.mark.skipif(not installed_chromiums(), reason=f"no Chromium is installed: {GET_CHROMIUM}")

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]
SITE = "http://site.test"
"""URL of the tests' site, as pages and actions write it."""


def page(body: str, title: str = "Page", status: int = 200) -> web.Response:
    """Return a response with an HTML page."""
    text = f"<!DOCTYPE html><html><head><title>{title}</title></head><body>{body}</body></html>"
    return web.Response(text=text, content_type="text/html", status=status)


@contextmanager
def serving(answer: Answer) -> Iterator[int]:
    """Run a server on loopback that handles all requests with `answer`; yield its port."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def start() -> tuple[web.ServerRunner, int]:
        runner = web.ServerRunner(web.Server(answer), shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        return runner, runner.addresses[0][1]

    runner, port = asyncio.run_coroutine_threadsafe(start(), loop).result()
    try:
        yield port
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@contextmanager
def serving_pages(pages: Mapping[str, str]) -> Iterator[int]:
    """Run a server on loopback with the body of each page by its path; yield its port."""

    async def answer(request: web.Request) -> web.StreamResponse:
        body = pages.get(request.path)
        return page("Nothing is here.", status=404) if body is None else page(body)

    with serving(answer) as port:
        yield port


class Canary:
    """Port that no request of an episode may reach, by TCP over IPv4 or IPv6, or by UDP."""

    def __init__(self) -> None:
        tcp = socket.create_server(("127.0.0.1", 0))
        self.port = int(tcp.getsockname()[1])
        udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        udp.bind(("127.0.0.1", self.port))
        self._sockets = {"tcp": (tcp, tcp.accept), "udp": (udp, lambda: udp.recvfrom(2000))}
        if socket.has_ipv6:
            with suppress(OSError):  # IPv6 is compiled in, but switched off on this machine
                tcp6 = socket.create_server(("::1", self.port), family=socket.AF_INET6)
                self._sockets["tcp6"] = (tcp6, tcp6.accept)
        for listener, _ in self._sockets.values():
            listener.setblocking(False)

    def received(self) -> list[str]:
        """Return protocol and sender of the traffic that has arrived."""
        arrived = []
        for name, (_, receive) in self._sockets.items():
            with suppress(BlockingIOError):
                arrived.append(f"{name} {receive()[0]!r}")
        return arrived

    def hears_within(self, timeout_s: float) -> bool:
        """Wait until something arrives; return False if nothing does."""
        deadline = time.monotonic() + timeout_s
        while not (heard := self.received()) and time.monotonic() < deadline:
            time.sleep(0.05)
        return bool(heard)

    def close(self) -> None:
        for listener, _ in self._sockets.values():
            listener.close()


@contextmanager
def canary() -> Iterator[Canary]:
    """Run a canary."""
    with closing(Canary()) as running:
        yield running


class Player:
    """Synchronous interface to a browser session, for tests without an event loop."""

    def __init__(self, port: int, view: PageView | None = None, limits: BrowserLimits | None = None) -> None:
        self.browser_pool: BrowserPool = browser_pool(limits or BrowserLimits())
        self.session = BrowserSession(
            self.browser_pool, {"site.test:80": SiteAddress("127.0.0.1", port)}, view or PageView(settle_s=5)
        )
        self.snapshot: Snapshot | None = None

    def run(self, work: Any) -> Any:
        """Run a coroutine on the event loop of the browser pool and return its result."""
        return asyncio.run_coroutine_threadsafe(work, self.browser_pool.loop).result(timeout=60)

    def start(self, *paths: str) -> Snapshot:
        """Open pages of the site, each in a tab."""
        self.snapshot = self.run(self.session.start([SITE + path for path in paths or ("/",)]))
        return self.snapshot

    def do(self, action: str) -> Snapshot:
        """Carry out an action; a name in angle brackets is replaced by the id of the element with that name."""
        assert self.snapshot is not None
        if "<" in action:
            before, _, rest = action.partition("<")
            name, _, after = rest.partition(">")
            ids = [key for key, element in self.snapshot.page.elements.items() if name in element.description]
            assert ids, f"{name!r} is not in {self.snapshot.text}"
            action = f"{before}{ids[0]}{after}"
        self.snapshot = self.run(self.session.act(parse_action(action)))
        return self.snapshot

    def close(self) -> None:
        self.run(self.session.close())


@contextmanager
def playing(
    port: int, *paths: str, view: PageView | None = None, limits: BrowserLimits | None = None
) -> Iterator[Player]:
    """Run a session that shows pages of the site."""
    player = Player(port, view, limits)
    try:
        player.start(*paths)
        yield player
    finally:
        player.close()
