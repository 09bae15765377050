"""Which copy of a site's data a request sees: the one that its header `X-Site-Copy` names.

A copy is a folder that a session made and will remove. A file is copied into it from the seed state at the first
request that needs it. A request that names no copy, or one that is gone, is refused, so that a mistake shows; only
under the plain address, which people use, it sees the visitors' copy.
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

from env_adapters.webarena.browser.network_proxy import COPY_LOST_HEADER
from env_adapters.webarena.sites.served.pristine import PristineAnswers, whole

HEADER = "X-Site-Copy"
VISITOR = "visitor"
PLAIN_HOSTS = ("127.0.0.1", "localhost")
NAME = re.compile(r"[0-9a-f]{16,64}")
HEALTH = "/-/health"

Environ = dict[str, Any]
StartResponse = Callable[..., Any]
App = Callable[[Environ, StartResponse], Iterable[bytes]]

current: ContextVar[Path | None] = ContextVar("current", default=None)
"""Folder of the copy that the present request sees."""


class Copies:
    """A WSGI application that finds the copy of a request and hands on to the site.

    Attributes:
        seed: folder with the state that copies begin with.
        folder: folder that copies lie in.
        parts: names of files or folders in `seed` that the site writes to.
        static: folders with files that never change, by the beginning of their address.
        answers: those that unchanged copies share; None for a site that does not keep its state in one SQLite file.
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
        """Answer a request."""
        path = environ["PATH_INFO"]
        if path == HEALTH:
            return answer(start_response, "200 OK", "ok")
        for prefix, folder in self.static.items():
            if path.startswith(prefix):
                return send_file(start_response, folder, path.removeprefix(prefix))
        copy = self.copy_of(environ)
        if copy is None:
            text = f"No such copy of the site: send the header {HEADER}."
            return answer(start_response, "403 Forbidden", text, (COPY_LOST_HEADER, "none"))
        try:
            self.fill(copy)
        except FileNotFoundError:  # released meanwhile
            text = "This copy of the site was released."
            return answer(start_response, "403 Forbidden", text, (COPY_LOST_HEADER, "released"))
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
        """Answer from what is kept where the copy is unchanged, and keep what may be kept."""
        key = answers.key(environ, copy)
        found = answers.get(key) if key is not None else None
        if found is None:
            said: list[Any] = []
            body = whole(self.app(environ, lambda status, headers, error=None: said.extend((status, headers))))
            found = said[0], said[1], body
            if key is not None and answers.key(environ, copy) == key:  # the request itself may have changed it
                answers.keep(key, found)
        start_response(found[0], found[1])
        return [found[2]]

    def copy_of(self, environ: Environ) -> Path | None:
        """Folder of the copy that a request may see, or None."""
        name = environ.get("HTTP_X_SITE_COPY", "")
        if not name and environ.get("HTTP_HOST", "").partition(":")[0] in PLAIN_HOSTS:
            visitor = self.folder / VISITOR
            visitor.mkdir(exist_ok=True)
            return visitor
        copy = self.folder / name
        return copy if NAME.fullmatch(name) and copy.is_dir() else None

    def fill(self, copy: Path) -> None:
        """Copy what is missing; workers that do it at once all end up with the same files."""
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


def answer(start_response: StartResponse, status: str, text: str, *more: tuple[str, str]) -> Iterable[bytes]:
    """A reply of one line, with more headers."""
    body = text.encode()
    start_response(status, [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(body))), *more])
    return [body]


def send_file(start_response: StartResponse, folder: Path, name: str) -> Iterable[bytes]:
    """A file below `folder`."""
    file = (folder / name).resolve()
    if not file.is_relative_to(folder.resolve()) or not file.is_file():
        return answer(start_response, "404 Not Found", "No such file.")
    kind = mimetypes.guess_type(file.name)[0] or "application/octet-stream"
    headers = [("Content-Type", kind), ("Content-Length", str(file.stat().st_size))]
    start_response("200 OK", [*headers, ("Cache-Control", "public, max-age=86400, immutable")])
    return [file.read_bytes()]
