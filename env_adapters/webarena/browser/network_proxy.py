"""The fence of an episode: a proxy on loopback that passes what goes to the sites of its task, and nothing else.

All that a context of the browser sends goes through it, whatever in a page caused it. It also knows when the network is
quiet, and whether a site is down.
"""

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit

MAX_HEAD = 64 * 1024
"""Bytes that the head of a request or response may have."""
CHUNK = 64 * 1024
CONNECT_S = 10.0
"""Seconds that a site may take to accept a connection."""
TUNNEL_QUIET_S = 0.1
"""Seconds without a byte after which a tunnel, such as that of a WebSocket, counts as quiet."""
GATEWAY = (b"502", b"503", b"504")
"""Answers of a site that cannot do its part."""
LOST = "X-Site-Copy-Lost"
"""Header by which an embedded site says that there is no such copy of it."""
MAX_REFUSALS = 100
PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443}
REFUSAL = (
    "<!DOCTYPE html><title>Outside</title>"
    "<p>This address is outside the sites of this task. Go back, or go to one of them."
)
FAILURE = "<!DOCTYPE html><title>No answer</title><p>This site does not answer."


@dataclass(frozen=True, slots=True)
class Address:
    """Where a site listens.

    Attributes:
        host: name or number.
        port: number.
        headers: what each request to it says besides, such as which copy of its state is meant; no page can change it.
    """

    host: str
    port: int
    headers: Mapping[str, str] = field(default_factory=dict)


def authority(url: str) -> str:
    """Host and port of a URL, as `shop.test:80`; "" if it has none that could be connected to.

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
    """What went through a fence.

    Attributes:
        requests: passed on so far.
        open_requests: passed on and not answered to the end.
        refused: addresses that were not passed on, the first hundred.
        refusals: how many there were since they were last taken.
        down: what a site that does not answer is called, and why; "" as long as all answer.
        moved_at: monotonic second of the last byte in a tunnel, or of the last change of the other figures.
    """

    requests: int = 0
    open_requests: int = 0
    refused: list[str] = field(default_factory=list)
    refusals: int = 0
    down: str = ""
    moved_at: float = -1e9

    def take_refusals(self) -> int:
        """How many addresses were refused since this was last asked."""
        count, self.refusals = self.refusals, 0
        return count

    @property
    def busy(self) -> bool:
        """Whether an answer is still awaited, or a tunnel is in use."""
        return self.open_requests > 0 or time.monotonic() - self.moved_at < TUNNEL_QUIET_S


class NetworkProxy:
    """A proxy for one episode.

    Args:
        routes: where each allowed site listens, by the authority under which pages name it, such as `shop.test:80`.
    """

    def __init__(self, routes: Mapping[str, Address]) -> None:
        self.routes = dict(routes)
        self.traffic = Traffic()
        self._server: asyncio.Server | None = None
        self._passing: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        """The proxy's own address."""
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def allows(self, url: str) -> bool:
        """Whether a page of that URL may be loaded."""
        return urlsplit(url).scheme in ("http", "https") and authority(url) in self.routes

    async def start(self) -> None:
        """Listen on a free port of loopback."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, limit=MAX_HEAD)

    async def close(self) -> None:
        """Stop listening and cut what is still open."""
        if self._server is not None:
            self._server.close()
        for task in list(self._passing):
            task.cancel()
        await asyncio.gather(*self._passing, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._passing.add(task)
        try:
            await self._serve(reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
            pass  # one of the two sides is gone, or does not speak HTTP
        except asyncio.CancelledError:
            if self._server is not None and self._server.is_serving():
                raise
        finally:
            self._passing.discard(task)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        line, _, fields = head.partition(b"\r\n")
        method, target, version = line.decode("latin-1").split(" ")
        url = f"https://{target}" if method == "CONNECT" else target
        route = self.routes.get(authority(url))
        if route is None or not (url.startswith("http://") or (method == "CONNECT" and not route.headers)):
            self.traffic.refusals += 1
            if len(self.traffic.refused) < MAX_REFUSALS:
                self.traffic.refused.append(url[:500])
            writer.write(_page("403 Forbidden", REFUSAL))
            await writer.drain()
            return
        tunnel = method == "CONNECT"
        self.traffic.requests += 1
        self.traffic.open_requests += not tunnel
        try:
            async with asyncio.timeout(CONNECT_S):
                upstream, onward = await asyncio.open_connection(route.host, route.port, limit=MAX_HEAD)
        except (OSError, TimeoutError) as error:
            self.traffic.down = f"{url[:200]} ({error or 'no connection in time'})"
            self.traffic.open_requests -= not tunnel
            writer.write(_page("502 Bad Gateway", FAILURE))
            await writer.drain()
            return
        try:
            if tunnel:
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
                await self._pass_both(reader, writer, upstream, onward)
            else:
                onward.write(_origin_form(method, target, version) + _single(fields, route.headers))
                needed = bool(route.headers) or _is_document(fields)
                await self._pass_answer(reader, writer, upstream, onward, url, needed)
        finally:
            self.traffic.open_requests -= not tunnel
            self.traffic.moved_at = time.monotonic() - TUNNEL_QUIET_S
            onward.close()

    async def _pass_answer(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        upstream: asyncio.StreamReader,
        onward: asyncio.StreamWriter,
        url: str,
        needed: bool,
    ) -> None:
        """Pass the body of a request on, and its answer back, which ends the connection.

        Args:
            reader, writer: to the browser.
            upstream, onward: to the site.
            url: what was asked for.
            needed: whether the site must do its part: the embedded ones for all that is asked, others for documents.
        """
        sending = asyncio.create_task(_pour(reader, onward))
        sending.add_done_callback(lambda _: onward.close())  # the browser gave up, or left
        try:
            try:
                answer = await upstream.readuntil(b"\r\n\r\n")
                while answer.startswith((b"HTTP/1.1 100", b"HTTP/1.1 103")):
                    answer = await upstream.readuntil(b"\r\n\r\n")
            except (OSError, asyncio.IncompleteReadError):
                if not sending.done():
                    self.traffic.down = f"{url[:200]} (it ended before it had answered)"
                raise
            line, _, fields = answer.partition(b"\r\n")
            if needed and (line[9:12] in GATEWAY or LOST.encode().lower() in fields.lower()):
                self.traffic.down = f"{url[:200]} ({line.decode('latin-1')})"
            writer.write(line + b"\r\n" + _single(fields))
            await _pour(upstream, writer)
        finally:
            sending.cancel()
            with suppress(asyncio.CancelledError, OSError):
                await sending

    async def _pass_both(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        upstream: asyncio.StreamReader,
        onward: asyncio.StreamWriter,
    ) -> None:
        """Pass bytes both ways until one side ends."""
        ways = [asyncio.create_task(_pour(*way, self.traffic)) for way in ((reader, onward), (upstream, writer))]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)


async def _pour(source: asyncio.StreamReader, sink: asyncio.StreamWriter, traffic: Traffic | None = None) -> None:
    while chunk := await source.read(CHUNK):
        if traffic is not None:
            traffic.moved_at = time.monotonic()
        sink.write(chunk)
        await sink.drain()


def _is_document(fields: bytes) -> bool:
    """Whether a request is for a page, or a frame of one: only then Chromium asks for these types first.

    Scripts that fetch parts of a page may ask for HTML, too, but not for XHTML.
    """
    wanted = b"accept: text/html,application/xhtml+xml"
    return any(line.lower().startswith(wanted) for line in fields.split(b"\r\n"))


def _origin_form(method: str, target: str, version: str) -> bytes:
    parts = urlsplit(target)
    path = target[len(f"{parts.scheme}://{parts.netloc}") :] or "/"
    return f"{method} {path if path.startswith('/') else '/' + path} {version}\r\n".encode("latin-1")


def _single(fields: bytes, added: Mapping[str, str] | None = None) -> bytes:
    """Header fields of a message after which the connection is closed; without those meant for a proxy."""
    dropped = (b"connection:", b"keep-alive:", b"proxy-", *(f"{name.lower()}:".encode() for name in added or ()))
    kept = [line for line in fields.split(b"\r\n") if line and not line.lower().startswith(dropped)]
    kept += [f"{name}: {value}".encode("latin-1") for name, value in (added or {}).items()]
    return b"\r\n".join([*kept, b"Connection: close", b"", b""])


def _page(status: str, body: str) -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: {len(body)}\r\n"
    return f"{head}Connection: close\r\n\r\n{body}".encode()
