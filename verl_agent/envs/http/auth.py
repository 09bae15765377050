"""Access control of a server: no web pages, and a bearer token as soon as other machines can reach it."""

import hmac
import ipaddress
import re

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from verl_agent.envs.http.settings import TOKEN_VARIABLE
from verl_agent.errors import ConfigError

GUARDED = ("http", "websocket")
"""Kinds of connections that are checked."""
OPEN_PATHS = ("/", "/health")
"""Paths that need no token."""


def is_loopback(host: str) -> bool:
    """Return True if only this machine can reach a server that listens on `host`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_token(host: str, token: str | None) -> None:
    """Check that a server has the token that its address requires.

    Raises:
        ConfigError: other machines can reach the server and the token is missing, or the token does not fit into a
            header.
    """
    if token is None and not is_loopback(host):
        raise ConfigError(
            f"--host {host} can be reached from other machines, so a token is needed: set {TOKEN_VARIABLE}, "
            "or pass --token. Without a token the server listens on 127.0.0.1 only."
        )
    if token is not None and not re.fullmatch(r"[!-~]+", token):
        raise ConfigError("the token must be one or more visible ASCII characters without spaces.")


class RefuseWebPages:
    """Middleware that refuses requests with the header `Origin`, which only browsers send.

    Without it, any page that a browser on this machine shows could open sessions on a server without a token.
    """

    def __init__(self, app: ASGIApp) -> None:
        """Guard `app`."""
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 403."""
        if scope["type"] not in GUARDED or "origin" not in Headers(scope=scope):
            return await self.app(scope, receive, send)
        reason = "requests of web pages are refused: the header Origin is set. Call the server from a program."
        await JSONResponse({"error": reason}, 403)(scope, receive, send)


class RequireToken:
    """Middleware that requires `Authorization: Bearer <token>`. The comparison takes constant time."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        """Guard `app`."""
        self.app = app
        self.expected = f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 401."""
        if scope["type"] not in GUARDED or scope["path"] in OPEN_PATHS:
            return await self.app(scope, receive, send)
        header = Headers(scope=scope).get("authorization", "")
        if hmac.compare_digest(header.encode("latin-1"), self.expected):
            return await self.app(scope, receive, send)
        reason = "the token is wrong" if header else "a token is needed: send the header Authorization: Bearer <token>"
        response = JSONResponse({"error": f"{reason}."}, 401, {"WWW-Authenticate": "Bearer"})
        await response(scope, receive, send)
