"""Access control of the viewer: Host and Origin of every request, and a token where other machines can reach it."""

import hmac
from http.cookies import SimpleCookie
from urllib.parse import parse_qs, urlsplit

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from verl_agent.envs.http.auth import is_loopback

COOKIE = "verl_agent_view"
"""Cookie with the token, set by the first request with `?token=`."""
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
}
"""Headers of every answer."""


class GuardRequests:
    """Middleware that refuses requests for other hosts, from other origins and without the token.

    Without the check of Host, a web page could reach the viewer by a name that it points to this machine (DNS
    rebinding). Without the check of Origin, it could open the viewer's web socket.

    Args:
        app: application to guard.
        host: address that the viewer listens at.
        token: token that a browser must send, or None.
    """

    def __init__(self, app: ASGIApp, host: str, token: str | None) -> None:
        self.app, self.host, self.token = app, host, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 403, or redirect to the URL without the token."""
        if scope["type"] not in ("http", "websocket"):
            return await self.app(scope, receive, send)
        refusal = self._refusal(scope)
        if refusal is None:
            return await self.app(scope, receive, _with_headers(send))
        if scope["type"] == "websocket":
            return await send({"type": "websocket.close", "code": 1008})
        await refusal(scope, receive, send)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if not self._is_own(host):
            return PlainTextResponse(f"Host {host!r} is not this viewer. Open the URL that it printed.\n", 403)
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != host:
            return PlainTextResponse("A page of another site sent this request.\n", 403)
        if self.token is None:
            return None
        cookie = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
        if cookie is not None and self._is_token(cookie.value):
            return None
        query = parse_qs(scope.get("query_string", b"").decode("latin-1"))
        if self._is_token(query.pop("token", [""])[0]):
            answer = RedirectResponse(scope["path"], 303)
            answer.set_cookie(COOKIE, self.token, httponly=True, samesite="strict")
            return answer
        return PlainTextResponse("A token is needed: open the URL that the viewer printed.\n", 403)

    def _is_own(self, host: str) -> bool:
        name = (urlsplit(f"//{host}").hostname or "").lower()
        return name == self.host or (is_loopback(self.host) and (name == "localhost" or is_loopback(name)))

    def _is_token(self, value: str) -> bool:
        return self.token is not None and hmac.compare_digest(value.encode(), self.token.encode())


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            extra = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
            message["headers"] = [*message.get("headers", ()), *extra]
        await send(message)

    return sending
