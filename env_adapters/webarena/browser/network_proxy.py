"""Network proxy of an episode: forwards requests to the sites of its task and refuses all others.

A browser context sends all its traffic through its proxy on loopback. The proxy also reports when the network is idle
and if a site is down.
"""

import asyncio
import hmac
import secrets
import time
from base64 import b64encode
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from env_adapters.webarena.browser.http_messages import close_after, html_response, is_document, origin_form
from env_adapters.webarena.browser.site_connection import MAX_HEAD, open_site
from verl_agent.errors import ConfigError

CHUNK = 64 * 1024
CONNECT_S = 10.0
"""Seconds after which a connection to a site times out."""
TUNNEL_IDLE_S = 0.1
"""Seconds without a byte after which a tunnel (for example, of a WebSocket) counts as idle."""
GATEWAY_ERRORS = (b"502", b"503", b"504")
"""Status codes of a site that is down."""
COPY_LOST_HEADER = "X-Site-Copy-Lost"
"""Response header of an embedded site that does not have the requested copy of its state."""
MAX_REFUSED_URLS = 100
PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443}
REFUSAL = (
    "<!DOCTYPE html><title>Outside</title>"
    "<p>This address is outside the sites of this task. Go back, or go to one of them."
)
USER = "session"
"""User name of the browser session at its proxy."""
FAILURE = "<!DOCTYPE html><title>No answer</title><p>This site does not answer."


@dataclass(frozen=True, slots=True)
class SiteAddress:
    """Network address of a site.

    Attributes:
        headers: headers added to each request, for example to select a copy of the site's state. Pages cannot
            override them.
    """

    host: str
    port: int
    headers: Mapping[str, str] = field(default_factory=dict)


def authority(url: str) -> str:
    """Return host and port of a URL as in `shop.test:80`, or "" if the URL has no valid authority.

    Example:
        >>> authority("http://Shop.test/cart")
        'shop.test:80'
    """
    try:
        parts = urlsplit(url)
        port = parts.port or PORTS.get(parts.scheme, 0)
    except ValueError:
        return ""
    return f"{parts.hostname}:{port}" if parts.hostname and port and not parts.username else ""


@dataclass(slots=True)
class Traffic:
    """Counters of the requests of one proxy.

    Attributes:
        requests: number of forwarded requests.
        open_requests: number of forwarded requests whose response is not complete.
        refused_urls: first hundred URLs that were refused.
        refusals: number of refused requests since the last call of `take_refusals`.
        site_error: URL and error of the first request to a site that is down, or "" if no site has failed.
        active_at: monotonic time in seconds of the last byte in a tunnel or of the last finished request.
    """

    requests: int = 0
    open_requests: int = 0
    refused_urls: list[str] = field(default_factory=list)
    refusals: int = 0
    site_error: str = ""
    active_at: float = -1e9

    def fail(self, text: str) -> None:
        """Note that a site failed; of several failures the first, since later ones may be icons of a failed page."""
        self.site_error = self.site_error or text

    def take_refusals(self) -> int:
        """Return the number of refused requests since the last call."""
        count, self.refusals = self.refusals, 0
        return count

    @property
    def busy(self) -> bool:
        """True while a response is incomplete or a tunnel is in use."""
        return self.open_requests > 0 or time.monotonic() - self.active_at < TUNNEL_IDLE_S


class NetworkProxy:
    """HTTP proxy for one episode.

    Args:
        routes: address of each allowed site by the authority that pages use for it, for example `shop.test:80`.

    Attributes:
        password: secret of this proxy. Without it, the proxy serves no request.
    """

    def __init__(self, routes: Mapping[str, SiteAddress]) -> None:
        self.routes = dict(routes)
        self.traffic = Traffic()
        self.password = secrets.token_urlsafe(16)
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def allows(self, url: str) -> bool:
        """Return True if a page of this URL may be loaded."""
        return authority(url) in self.routes and urlsplit(url).scheme in ("http", "https")

    async def start(self) -> None:
        """Listen on a free port of loopback."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, limit=MAX_HEAD)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            await self._serve(reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
            pass  # one of the two sides has closed, or does not use HTTP
        except asyncio.CancelledError:
            if self._server is not None and self._server.is_serving():
                raise
        finally:
            self._connections.discard(task)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        line, _, fields = head.partition(b"\r\n")
        method, target, version = line.decode("latin-1").split(" ")
        if not self._is_authorized(fields):
            writer.write(
                html_response("407 Proxy Authentication Required", FAILURE, "Proxy-Authenticate: Basic realm=x")
            )
            await writer.drain()
            return
        url = f"https://{target}" if method == "CONNECT" else target
        route = self.routes.get(authority(url))
        if route is None or not (url.startswith("http://") or (method == "CONNECT" and not route.headers)):
            self.traffic.refusals += 1
            if len(self.traffic.refused_urls) < MAX_REFUSED_URLS:
                self.traffic.refused_urls.append(url[:500])
            writer.write(html_response("403 Forbidden", REFUSAL))
            await writer.drain()
            return
        tunnel = method == "CONNECT"
        self.traffic.requests += 1
        self.traffic.open_requests += not tunnel
        try:
            async with asyncio.timeout(CONNECT_S):
                site_reader, site_writer, outside = await open_site(route.host, route.port, tunnel)
        except (OSError, TimeoutError, ConfigError) as error:
            self.traffic.fail(f"{url[:200]} ({error or 'no connection in time'})")
            self.traffic.open_requests -= not tunnel
            writer.write(html_response("502 Bad Gateway", FAILURE))
            await writer.drain()
            return
        try:
            if tunnel:
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
                await self._forward_tunnel(reader, writer, site_reader, site_writer)
            else:
                line_out = origin_form(method, target, version, outside.origin)
                site_writer.write(line_out + close_after(fields, {**route.headers, **outside.headers}))
                required = bool(route.headers) or is_document(fields)
                await self._forward_response(reader, writer, site_reader, site_writer, url, required)
        finally:
            self.traffic.open_requests -= not tunnel
            self.traffic.active_at = time.monotonic() - TUNNEL_IDLE_S
            site_writer.close()

    def _is_authorized(self, fields: bytes) -> bool:
        """Return True if a request has the secret of this proxy."""
        expected = b"proxy-authorization: basic " + b64encode(f"{USER}:{self.password}".encode())
        start = len(b"proxy-authorization: basic ")
        lines = (line[:start].lower() + line[start:] for line in fields.split(b"\r\n"))
        return any(hmac.compare_digest(line, expected) for line in lines)

    async def _forward_response(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        site_reader: asyncio.StreamReader,
        site_writer: asyncio.StreamWriter,
        url: str,
        required: bool,
    ) -> None:
        """Forward the body of a request and the response to it, which ends the connection.

        Args:
            required: True if a failed response is an error of the site. This holds for all requests to embedded
                sites, and for documents of other sites.
        """
        sending = asyncio.create_task(_copy_stream(reader, site_writer))
        sending.add_done_callback(lambda _: site_writer.close())  # the browser has closed the connection
        try:
            try:
                head = await site_reader.readuntil(b"\r\n\r\n")
                while head.startswith((b"HTTP/1.1 100", b"HTTP/1.1 103")):
                    head = await site_reader.readuntil(b"\r\n\r\n")
            except (OSError, asyncio.IncompleteReadError):
                if not sending.done():
                    self.traffic.site_error = (
                        self.traffic.site_error or f"{url[:200]} (the connection closed before the response)"
                    )
                raise
            line, _, fields = head.partition(b"\r\n")
            if required and (line[9:12] in GATEWAY_ERRORS or COPY_LOST_HEADER.encode().lower() in fields.lower()):
                self.traffic.fail(f"{url[:200]} ({line.decode('latin-1')})")
            writer.write(line + b"\r\n" + close_after(fields))
            await _copy_stream(site_reader, writer)
        finally:
            sending.cancel()
            with suppress(asyncio.CancelledError, OSError):
                await sending

    async def _forward_tunnel(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        site_reader: asyncio.StreamReader,
        site_writer: asyncio.StreamWriter,
    ) -> None:
        """Forward bytes in both directions until one side closes."""
        copies = [
            asyncio.create_task(_copy_stream(*streams, self.traffic))
            for streams in ((reader, site_writer), (site_reader, writer))
        ]
        try:
            await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for copy in copies:
                copy.cancel()
            await asyncio.gather(*copies, return_exceptions=True)


async def _copy_stream(
    source: asyncio.StreamReader, sink: asyncio.StreamWriter, traffic: Traffic | None = None
) -> None:
    while chunk := await source.read(CHUNK):
        if traffic is not None:
            traffic.active_at = time.monotonic()
        sink.write(chunk)
        await sink.drain()
