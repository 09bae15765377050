"""Listen at a port, and stop in an orderly way: SIGTERM lets running episodes end, Ctrl-C does not."""

import signal
import socket
import time
from types import FrameType

import uvicorn

from verl_agent.envs.http.server import EnvServer
from verl_agent.errors import ConfigError

BACKLOG = 2048
KEEP_ALIVE_S = 75
"""Seconds that an idle connection is kept: a model may think for long between two actions."""
ANSWER_S = 5
"""Seconds that calls still have to be answered when the server stops."""


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens; port 0 takes any that is free.

    Raises:
        ConfigError: the port is taken or not allowed, or the host is not one of this machine.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except (OSError, OverflowError) as error:
        raise ConfigError(f"--host {host} --port {port} is no address of this machine: {error}.") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"port {port} of {host} cannot be used: {error.strerror or error}. "
            "Choose another with --port, or 0 for any that is free."
        ) from error
    return listener


def url_of(listener: socket.socket) -> str:
    """Where clients find what listens; a server on all addresses is named by this machine's name."""
    host, port = listener.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = socket.gethostname()
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class Listener(uvicorn.Server):
    """Serves an environment until it is told to stop.

    Args:
        server: what is served.
        listener: a socket from `bind`.
    """

    def __init__(self, server: EnvServer, listener: socket.socket) -> None:
        config = uvicorn.Config(
            server.app,
            log_level="warning",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=ANSWER_S,
            ws="none",
        )
        super().__init__(config)
        self._server, self._listener = server, listener
        self._drained_at: float | None = None

    def run_here(self) -> None:
        """Serve until SIGTERM or Ctrl-C; sessions and hosts have ended when this returns."""
        self.run([self._listener])

    def drain(self) -> None:
        """Refuse new sessions, and stop when the running episodes have ended or their time is over."""
        self._server.book.draining = True
        self._drained_at = time.monotonic() + self._server.limits.drain_s

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """SIGTERM drains; a second one, or Ctrl-C, stops at once."""
        if sig == signal.SIGTERM and self._drained_at is None:
            self.drain()
        else:
            self.should_exit = True

    async def on_tick(self, counter: int) -> bool:
        """Called by uvicorn ten times a second; returns whether to stop."""
        if self._drained_at is not None and (self._server.book.running == 0 or time.monotonic() > self._drained_at):
            self.should_exit = True
        return await super().on_tick(counter)
