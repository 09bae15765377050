"""Access control of the viewer: Host and Origin of every request, and a token, since machines have several users."""

import hmac
import ipaddress
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from starlette.datastructures import Headers
from starlette.requests import cookie_parser
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from verl_agent.envs.http.auth import is_loopback

COOKIE = "verl_agent_view"
"""Start of the name of the cookie with the token, which the port follows; the first request with `?token=` sets it."""
HEADERS = {"X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY", "Referrer-Policy": "no-referrer"}
"""Headers of every answer."""


class GuardRequests:
    """Middleware that refuses requests for other hosts, from other origins and without the token.

    Without the check of Host, a web page could reach the viewer by a name that it points to this machine (DNS
    rebinding). Without the check of Origin, it could open the viewer's web socket. Without the token, every user of
    this machine could.
    """

    def __init__(self, app: ASGIApp, host: str, token: str) -> None:
        self.app, self.host, self.token = app, host.lower(), token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 403, or redirect to the URL without the token."""
        if scope["type"] not in ("http", "websocket"):
            return await self.app(scope, receive, send)
        try:
            refusal = self._refusal(scope)
        except ValueError:  # a Host or an Origin that cannot be parsed
            refusal = PlainTextResponse("The request has an invalid header.\n", 403)
        if refusal is None:
            return await self.app(scope, receive, _with_headers(send))
        if scope["type"] == "websocket":
            return await send({"type": "websocket.close", "code": 1008})
        await refusal(scope, receive, _with_headers(send))

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "").lower()
        address = urlsplit(f"//{host}")
        if not self._is_own(address.hostname or ""):
            return PlainTextResponse(f"Host {host!r} is not this viewer. Open the URL that it printed.\n", 403)
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc.lower() != host:
            return PlainTextResponse("A page of another site sent this request.\n", 403)
        name = f"{COOKIE}_{address.port or 80}"  # browsers send a cookie to all ports of a host
        known = self._is_token(cookie_parser(headers.get("cookie", "")).get(name, ""))
        query = parse_qsl(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True)
        given = [value for parameter, value in query if parameter == "token"]
        if known and not given:
            return None
        if known or any(map(self._is_token, given)):  # pages do not know the parameter
            rest = urlencode([(parameter, value) for parameter, value in query if parameter != "token"])
            path = "/" + quote(scope["path"].lstrip("/"))  # two slashes would begin the name of another host
            answer = RedirectResponse(path + (f"?{rest}" if rest else ""), 303)
            answer.set_cookie(name, self.token, httponly=True, samesite="strict")
            return answer
        return PlainTextResponse("A token is needed: open the URL that the viewer printed.\n", 403)

    def _is_own(self, name: str) -> bool:
        if is_unspecified(self.host):
            return True  # any name of this machine; the token keeps other sites out
        return name == self.host or (is_loopback(self.host) and (name == "localhost" or is_loopback(name)))

    def _is_token(self, value: str) -> bool:
        return hmac.compare_digest(value.encode(), self.token.encode())


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            extra = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
            message["headers"] = [*message.get("headers", ()), *extra]
        await send(message)

    return sending


def is_unspecified(host: str) -> bool:
    """Return True for an address that stands for all addresses of the machine, such as `0.0.0.0`."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False
