"""Connection to a site of a task, through the proxy of this machine's environment where the site is outside."""

import asyncio
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from verl_agent.envs.machine.proxies import proxy_of

MAX_HEAD = 64 * 1024
"""Most bytes in the head of a request or response."""


@dataclass(frozen=True, slots=True)
class Outside:
    """Beginning of a request's target, and header fields, for the proxy by which this machine reaches a site."""

    origin: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)


async def open_site(host: str, port: int, tunnel: bool) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, Outside]:
    """Connect to a site, through the proxy of the environment if `proxy_of` names one for it.

    Raises:
        OSError: the site or the proxy does not answer, or the proxy refuses a tunnel.
        ConfigError: the proxy speaks another protocol.
    """
    site = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    origin = f"{'https' if tunnel else 'http'}://{site}"
    proxy = urlsplit(proxy_of(origin) or "")
    if not proxy.hostname:
        return *(await asyncio.open_connection(host, port, limit=MAX_HEAD)), Outside()
    login = b64encode(unquote(f"{proxy.username}:{proxy.password or ''}").encode()).decode()
    headers = {"Proxy-Authorization": f"Basic {login}"} if proxy.username else {}
    encrypted = proxy.scheme == "https"
    reader, writer = await asyncio.open_connection(
        proxy.hostname, proxy.port or (443 if encrypted else 80), limit=MAX_HEAD, ssl=encrypted or None
    )
    if not tunnel:
        return reader, writer, Outside(origin, headers)
    fields = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    writer.write(f"CONNECT {site} HTTP/1.1\r\nHost: {site}\r\n{fields}\r\n".encode())
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        head = b"nothing\r\n"
    answer = head.partition(b"\r\n")[0].decode("latin-1")
    if answer.split(" ")[1:2] != ["200"]:
        writer.close()
        raise OSError(f"the proxy {proxy.hostname} answered {answer!r}")
    return reader, writer, Outside()
