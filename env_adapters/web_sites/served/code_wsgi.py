"""Code host as a WSGI application that runs `fossil cgi` for each request."""

import os
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

from env_adapters.web_sites.served.copies import App, Copies, Environ, StartResponse, current, text_response
from env_adapters.web_sites.served.fossil.dates import dated

FOLDER = "code"
TIMEOUT_S = 30
MAX_BODY = 1_000_000
"""Most bytes in the body of a request."""
NEW_TAB = b" target='_blank'"
"""Attribute that is removed, because the list of repositories would open each of them in a new tab."""
PASSED_ON = ("CONTENT_LENGTH", "CONTENT_TYPE", "PATH_INFO", "QUERY_STRING", "REMOTE_ADDR", "REQUEST_METHOD")


def application_of(fossil: str) -> App:
    """Return the application that runs the program `fossil`."""

    def application(environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        copy = current.get()
        assert copy is not None  # set by `Copies`
        length = int(environ.get("CONTENT_LENGTH") or 0)
        if length > MAX_BODY:
            return text_response(start_response, "413 Content Too Large", f"At most {MAX_BODY} bytes.")
        body = environ["wsgi.input"].read(length) if length else b""
        try:
            done = subprocess.run(
                [fossil, "cgi", str(script(copy))],
                input=body,
                env=dict(variables(environ, copy)),
                capture_output=True,
                timeout=TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return text_response(start_response, "504 Gateway Timeout", f"Fossil took more than {TIMEOUT_S} s.")
        head, separator, content = done.stdout.partition(b"\r\n\r\n")
        if not separator:
            return text_response(start_response, "502 Bad Gateway", "Fossil did not answer.")
        status, headers = "200 OK", []
        for line in head.decode("latin-1").split("\r\n"):
            name, _, value = line.partition(": ")
            if name.lower() == "status":
                status = value
            elif name.lower() not in ("connection", "content-length"):
                headers.append((name, value))
        content = dated(content.replace(NEW_TAB, b""))
        start_response(status, [*headers, ("Content-Length", str(len(content)))])
        return [content]

    return application


def script(copy: Path) -> Path:
    """Return the configuration file of `fossil cgi` with the folder of a copy's repositories."""
    file = copy / "fossil.cgi"
    if not file.exists():
        new = copy / f".fossil.{os.getpid()}.{os.urandom(4).hex()}"
        new.write_text(f"#!fossil\ndirectory: {copy / FOLDER}\nrepolist\n", encoding="utf-8")
        new.replace(file)
    return file


def variables(environ: Environ, copy: Path) -> Iterator[tuple[str, str]]:
    """Yield the CGI environment variables of a request."""
    for name, value in environ.items():
        if name in PASSED_ON or (name.startswith("HTTP_") and name != "HTTP_ACCEPT_ENCODING"):
            yield name, str(value)
    host, _, port = environ.get("HTTP_HOST", "").partition(":")
    yield from {
        "FOSSIL_HOME": str(copy),
        "GATEWAY_INTERFACE": "CGI/1.1",
        "HOME": str(copy),
        "REQUEST_URI": environ.get("RAW_URI", environ["PATH_INFO"]),
        "SCRIPT_NAME": "",
        "SERVER_NAME": host,
        "SERVER_PORT": port or "80",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "USER": "nobody",
    }.items()


seed = Path(os.environ["SITES_SEED_FOLDER"])
application = Copies(
    application_of(os.environ.get("SITES_FOSSIL", "fossil")),
    seed,
    Path(os.environ["SITES_COPIES_FOLDER"]),
    [FOLDER],
    {},
)
