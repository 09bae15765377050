"""Pages of our own on loopback, a canary for what must not be reached, and the browsers of the tests."""

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from typing import Any

import pytest
from aiohttp import web

from env_adapters.webarena.browser.chromium import GET_CHROMIUM, installed_chromiums
from env_adapters.webarena.browser.grammar import parse
from env_adapters.webarena.browser.network_proxy import Address
from env_adapters.webarena.browser.pool import BrowserPool, browser_pool
from env_adapters.webarena.browser.process import BrowserLimits
from env_adapters.webarena.browser.session import BrowserSession
from env_adapters.webarena.browser.snapshot import Snapshot, View

needs_chromium = pytest.mark.skipif(not installed_chromiums(), reason=f"no Chromium is installed: {GET_CHROMIUM}")

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]
SITE = "http://site.test"
"""How the tests' pages name themselves."""


def page(body: str, title: str = "Page", status: int = 200) -> web.Response:
    """A page."""
    text = f"<!DOCTYPE html><html><head><title>{title}</title></head><body>{body}</body></html>"
    return web.Response(text=text, content_type="text/html", status=status)


@contextmanager
def serving(answer: Answer) -> Iterator[int]:
    """A server on loopback whose every request `answer` answers; gives its port."""
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
    """The same with the body of each page by its path."""

    async def answer(request: web.Request) -> web.StreamResponse:
        body = pages.get(request.path)
        return page("Nothing is here.", status=404) if body is None else page(body)

    with serving(answer) as port:
        yield port


class Canary:
    """A port that nothing of an episode may reach, by TCP over IPv4 or IPv6, or by UDP."""

    def __init__(self) -> None:
        tcp = socket.create_server(("127.0.0.1", 0))
        self.port = int(tcp.getsockname()[1])
        udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        udp.bind(("127.0.0.1", self.port))
        self._knocks = {"tcp": (tcp, tcp.accept), "udp": (udp, lambda: udp.recvfrom(2000))}
        if socket.has_ipv6:
            with suppress(OSError):  # compiled in, and switched off on this machine
                tcp6 = socket.create_server(("::1", self.port), family=socket.AF_INET6)
                self._knocks["tcp6"] = (tcp6, tcp6.accept)
        for ear, _ in self._knocks.values():
            ear.setblocking(False)

    def heard(self) -> list[str]:
        """Who knocked."""
        found = []
        for name, (_, knock) in self._knocks.items():
            with suppress(BlockingIOError):
                found.append(f"{name} {knock()[0]!r}")
        return found

    def close(self) -> None:
        """Free the port."""
        for ear, _ in self._knocks.values():
            ear.close()


@contextmanager
def canary() -> Iterator[Canary]:
    """A canary that is closed again."""
    with closing(Canary()) as bird:
        yield bird


class Player:
    """A session with its loop, to be called from tests that have none."""

    def __init__(self, port: int, view: View | None = None, limits: BrowserLimits | None = None) -> None:
        self.browser_pool: BrowserPool = browser_pool(limits or BrowserLimits())
        self.session = BrowserSession(
            self.browser_pool, {"site.test:80": Address("127.0.0.1", port)}, view or View(settle_s=5)
        )
        self.sight: Snapshot | None = None

    def run(self, work: Any) -> Any:
        """The result of a coroutine on the loop of the browsers."""
        return asyncio.run_coroutine_threadsafe(work, self.browser_pool.loop).result(timeout=60)

    def start(self, *paths: str) -> Snapshot:
        """Open pages of the site."""
        self.sight = self.run(self.session.start([SITE + path for path in paths or ("/",)]))
        return self.sight

    def do(self, action: str) -> Snapshot:
        """Carry out an action; a name in angle brackets stands for the number of the element of that name."""
        assert self.sight is not None
        if "<" in action:
            before, _, rest = action.partition("<")
            name, _, after = rest.partition(">")
            found = [key for key, element in self.sight.page.elements.items() if name in element.words]
            assert found, f"{name!r} is not in {self.sight.text}"
            action = f"{before}{found[0]}{after}"
        self.sight = self.run(self.session.act(parse(action)))
        return self.sight

    def close(self) -> None:
        """Give the browser back."""
        self.run(self.session.close())


@contextmanager
def playing(port: int, *paths: str, view: View | None = None, limits: BrowserLimits | None = None) -> Iterator[Player]:
    """A session that shows pages of the site, and is closed again."""
    player = Player(port, view, limits)
    try:
        player.start(*paths)
        yield player
    finally:
        player.close()
