"""Server of the viewer: NiceGUI's pages in an ASGI application on a socket of its own."""

import os
import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

import uvicorn
from fastapi import FastAPI
from nicegui import ui

from verl_agent.errors import ConfigError
from verl_agent.viewer.access import GuardRequests, is_unspecified
from verl_agent.viewer.pages import add_pages
from verl_agent.viewer.state import ViewerState

LOCAL = "127.0.0.1"
"""Address that only this machine reaches."""
END_S = 1.5
"""Seconds from a signal to the end of the process."""


class EndingServer(uvicorn.Server):
    """Server that ends in time after SIGTERM or Ctrl-C, also while a page or the index is busy."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """End the server; end the process if that takes longer than `END_S`."""
        super().handle_exit(sig, frame)
        timer = threading.Timer(END_S, os._exit, [128 + sig])
        timer.daemon = True
        timer.start()


@dataclass(frozen=True, slots=True)
class ViewerAddress:
    """Bound socket of the viewer.

    Attributes:
        host: host and port for a browser.
    """

    socket: socket.socket
    host: str
    token: str

    def link(self, path: str = "/") -> str:
        """Return the URL of a page for a browser that does not have the token yet."""
        return f"http://{self.host}{path}{'&' if '?' in path else '?'}token={self.token}"


def listen(host: str, port: int) -> ViewerAddress:
    """Bind the port; 0 for any free one.

    Raises:
        ConfigError: the port is in use, or the address is not of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen()  # a bound port alone may be bound by another viewer too
    except OSError as error:
        listening.close()
        raise ConfigError(
            f"cannot listen at {host}:{port}: {error.strerror}. Choose another --port (0 for any "
            "free one), or end the process that uses it."
        ) from error
    name = socket.gethostname() if is_unspecified(host) else host
    shown = f"[{name}]" if ":" in name else name
    return ViewerAddress(listening, f"{shown}:{listening.getsockname()[1]}", secrets.token_urlsafe(16))


def serve_pages(state: ViewerState, host: str, port: int, report: Callable[[str], None]) -> None:
    """Serve the pages until SIGTERM or Ctrl-C.

    Args:
        state: opened sources; closed when this returns.
        report: called with the URL when the port is bound.

    Raises:
        ConfigError: the port is in use, or the address is not of this machine.
    """
    with _serving(state, host, port) as (address, server):
        report(address.link())
        server.run(sockets=[address.socket])


@contextmanager
def serving_pages(state: ViewerState, port: int) -> Iterator[ViewerAddress]:
    """Serve the pages in a thread while the block runs; yield the address."""
    with _serving(state, LOCAL, port) as (address, server):
        thread = threading.Thread(target=server.run, kwargs={"sockets": [address.socket]}, daemon=True)
        thread.start()
        try:
            yield address
        finally:
            server.should_exit = True
            thread.join()


@contextmanager
def _serving(state: ViewerState, host: str, port: int) -> Iterator[tuple[ViewerAddress, EndingServer]]:
    address = listen(host, port)
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    add_pages(state)
    ui.run_with(app, title="verl-agent", dark=None, show_welcome_message=False, reconnect_timeout=30)
    guarded = GuardRequests(app, host, address.token)
    state.start()
    try:
        yield address, EndingServer(uvicorn.Config(guarded, log_level="warning", timeout_graceful_shutdown=1))
    finally:
        state.close()
        address.socket.close()
