"""Connections of the network proxy to sites outside, through the proxy that the environment names."""

import asyncio
from base64 import b64encode

import pytest

from env_adapters.webarena.browser.network_proxy import NetworkProxy, SiteAddress
from tests.support.proxy import counting_proxy


@pytest.mark.parametrize("user", ["", "me:s%20t@"])
def test_sites_outside_are_reached_through_the_proxy_of_the_environment(user, monkeypatch):
    """A page is asked for by its whole URL, and a tunnel by CONNECT; sites of this machine are reached directly."""

    async def visit(routes: dict[str, SiteAddress], request: str) -> bytes:
        proxy = NetworkProxy(routes)
        await proxy.start()
        login = b64encode(f"session:{proxy.password}".encode()).decode()
        head = f"{request} HTTP/1.1\r\nHost: shop.test\r\nProxy-Authorization: Basic {login}\r\n\r\n"
        reader, writer = await asyncio.open_connection("127.0.0.1", int(proxy.url.rpartition(":")[2]))
        writer.write(head.encode())
        try:
            return await reader.read()
        finally:
            writer.close()
            await proxy.close()

    with counting_proxy({"page": 1}) as outer, counting_proxy({"page": 2}) as own:
        for name in ("HTTP_PROXY", "https_proxy"):
            monkeypatch.setenv(name, outer.url.replace("//", f"//{user}"))
        outside = {"shop.test:80": SiteAddress("outside.test", 8080), "shop.test:443": SiteAddress("outside.test", 443)}
        assert b'{"page": 1}' in asyncio.run(visit(outside, "GET http://shop.test/cart?a=1"))
        assert b"502 Bad Gateway" in asyncio.run(visit(outside, "CONNECT shop.test:443"))
        assert outer.asked == [("GET", "http://outside.test:8080/cart?a=1"), ("CONNECT", "outside.test:443")]
        expected = f"Basic {b64encode(b'me:s t').decode()}" if user else None
        assert outer.logins == [expected, expected]
        here = {"shop.test:80": SiteAddress("127.0.0.1", own.server_port)}
        assert b'{"page": 2}' in asyncio.run(visit(here, "GET http://shop.test/cart"))
        assert own.asked == [("GET", "/cart")] and len(outer.asked) == 2
