"""Heads of HTTP messages as the network proxy forwards them, and its own responses."""

from collections.abc import Mapping
from urllib.parse import urlsplit


def is_document(fields: bytes) -> bool:
    """Return True if a request is for a page or a frame: only for these Chromium lists these types first.

    Scripts that fetch parts of a page may request HTML, but not XHTML.
    """
    prefix = b"accept: text/html,application/xhtml+xml"
    return any(line.lower().startswith(prefix) for line in fields.split(b"\r\n"))


def origin_form(method: str, target: str, version: str, origin: str = "") -> bytes:
    """Return the request line for a site, with the path of the URL that a proxy gets.

    Args:
        origin: scheme and authority for another proxy; empty for the site itself.
    """
    parts = urlsplit(target)
    path = target[len(f"{parts.scheme}://{parts.netloc}") :] or "/"
    return f"{method} {origin}{path if path.startswith('/') else '/' + path} {version}\r\n".encode("latin-1")


def close_after(fields: bytes, added: Mapping[str, str] | None = None) -> bytes:
    """Return header fields that close the connection after the message, without the fields for a proxy.

    Args:
        added: further fields, which replace those of the same name. Fields with an underscore in their name are then
            dropped, because a site may take `X_Site_Copy` for `X-Site-Copy`.
    """
    dropped = (b"connection:", b"keep-alive:", b"proxy-", *(f"{name.lower()}:".encode() for name in added or ()))
    kept = [line for line in fields.split(b"\r\n") if line and not line.lower().startswith(dropped)]
    if added:
        kept = [line for line in kept if b"_" not in line.partition(b":")[0]]
    kept += [f"{name}: {value}".encode("latin-1") for name, value in (added or {}).items()]
    return b"\r\n".join([*kept, b"Connection: close", b"", b""])


def html_response(status: str, body: str, field: str = "Cache-Control: no-store") -> bytes:
    """Return a response of the proxy itself, with a further header field."""
    head = f"HTTP/1.1 {status}\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: {len(body)}\r\n"
    return f"{head}{field}\r\nConnection: close\r\n\r\n{body}".encode()
