"""Selection of the copy of a site's data by the request header `X-Site-Copy`.

A copy is a folder that a session creates and removes. The first request that needs a file copies it from the initial
state. A request without a copy, or with a removed one, is refused. Requests to the plain address, which people use in
their browser, share the visitors' copy.
"""

import mimetypes
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from env_adapters.web_sites.served.pristine import PristineAnswers, whole
from env_adapters.webarena.browser.network_proxy import COPY_LOST_HEADER

HEADER = "X-Site-Copy"
VISITOR = "visitor"
PLAIN_HOSTS = ("127.0.0.1", "localhost")
NAME = re.compile(r"[0-9a-f]{16,64}")
HEALTH = "/-/health"

Environ = dict[str, Any]
StartResponse = Callable[..., Any]
App = Callable[[Environ, StartResponse], Iterable[bytes]]

current: ContextVar[Path | None] = ContextVar("current", default=None)
"""Folder of the copy of the current request."""


class Copies:
    """WSGI application that selects the copy of a request and forwards the request to the site.

    Attributes:
        seed: folder with the initial state of copies.
        parts: names of files or folders in `seed` that the site writes to.
        static: folders with static files, by the prefix of their path.
        answers: cache for unchanged copies; None for a site that does not keep its state in one SQLite file.
    """

    def __init__(
        self,
        app: App,
        seed: Path,
        folder: Path,
        parts: Iterable[str],
        static: Mapping[str, Path],
        answers: PristineAnswers | None = None,
    ) -> None:
        self.app, self.seed, self.folder = app, seed, folder
        self.parts, self.static, self.answers = list(parts), dict(static), answers

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path == HEALTH:
            return text_response(start_response, "200 OK", "ok")
        for prefix, folder in self.static.items():
            if path.startswith(prefix):
                return send_file(start_response, folder, path.removeprefix(prefix))
        copy = self.copy_of(environ)
        if copy is None:
            text = f"No such copy of the site: send the header {HEADER}."
            return text_response(start_response, "403 Forbidden", text, (COPY_LOST_HEADER, "none"))
        try:
            self.fill(copy)
        except FileNotFoundError:  # the session has released it
            text = "This copy of the site was released."
            return text_response(start_response, "403 Forbidden", text, (COPY_LOST_HEADER, "released"))
        token = current.set(copy)
        try:
            if self.answers is None:
                return self.app(environ, start_response)
            return self.answer(self.answers, environ, start_response, copy)
        finally:
            current.reset(token)

    def answer(
        self, answers: PristineAnswers, environ: Environ, start_response: StartResponse, copy: Path
    ) -> Iterable[bytes]:
        """Answer from the cache if the copy is unchanged, else from the site; cache the response if possible."""
        key = answers.key(environ, copy)
        response = answers.get(key) if key is not None else None
        if response is None:
            head: list[Any] = []
            body = whole(self.app(environ, lambda status, headers, error=None: head.extend((status, headers))))
            response = head[0], head[1], body
            if key is not None and answers.key(environ, copy) == key:  # the request itself may have changed the copy
                answers.keep(key, response)
        status, headers, body = response
        start_response(status, headers)
        return [body]

    def copy_of(self, environ: Environ) -> Path | None:
        """Return the folder of the copy of a request, or None if the request has no valid copy."""
        name = environ.get("HTTP_X_SITE_COPY", "")
        if not name and environ.get("HTTP_HOST", "").partition(":")[0] in PLAIN_HOSTS:
            visitor = self.folder / VISITOR
            visitor.mkdir(exist_ok=True)
            return visitor
        copy = self.folder / name
        return copy if NAME.fullmatch(name) and copy.is_dir() else None

    def fill(self, copy: Path) -> None:
        """Copy missing files from the initial state; concurrent workers get the same files."""
        os.utime(copy)
        for part in self.parts:
            target = copy / part
            if target.exists():
                continue
            new = copy / f".{part}.{uuid.uuid4().hex}"
            if (self.seed / part).is_dir():
                shutil.copytree(self.seed / part, new)
                try:
                    new.rename(target)
                except OSError:
                    shutil.rmtree(new)
            else:
                shutil.copyfile(self.seed / part, new)
                try:
                    os.link(new, target)
                except FileExistsError:
                    pass
                finally:
                    new.unlink()


def text_response(start_response: StartResponse, status: str, text: str, *more: tuple[str, str]) -> Iterable[bytes]:
    """Send a plain-text response with further headers."""
    body = text.encode()
    start_response(status, [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(body))), *more])
    return [body]


def send_file(start_response: StartResponse, folder: Path, name: str) -> Iterable[bytes]:
    """Send a file below `folder`."""
    file = (folder / name).resolve()
    if not file.is_relative_to(folder.resolve()) or not file.is_file():
        return text_response(start_response, "404 Not Found", "No such file.")
    kind = mimetypes.guess_type(file.name)[0] or "application/octet-stream"
    headers = [("Content-Type", kind), ("Content-Length", str(file.stat().st_size))]
    start_response("200 OK", [*headers, ("Cache-Control", "public, max-age=86400, immutable")])
    return [file.read_bytes()]
