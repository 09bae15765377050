"""Server process: binds a port and stops gracefully. SIGTERM waits for running episodes, Ctrl-C does not."""

import resource
import signal
import socket
import time
from types import FrameType

import uvicorn

from verl_agent.envs.http.connections import REFUSED, connection_class
from verl_agent.envs.http.server import EnvServer
from verl_agent.errors import ConfigError

BACKLOG = 2048
KEEP_ALIVE_S = 75
"""Seconds that an idle connection is kept; a model may take long between two actions."""
OTHER_FILES = 256
"""Open files of a server beside those of its connections."""
SHUTDOWN_S = 5
"""Seconds that running calls have to end when the server stops."""


def bind_listener(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 takes any free one.

    Raises:
        ConfigError: the port is taken or not allowed, or the host is not an address of this machine.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except (OSError, OverflowError) as error:
        raise ConfigError(f"--host {host} --port {port} is not an address of this machine: {error}.") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"port {port} of {host} cannot be used: {error.strerror or error}. "
            "Choose another with --port, or 0 for any free one."
        ) from error
    return listener


def url_of(listener: socket.socket) -> str:
    """Return the base URL of a listening socket; for all addresses it contains the name of this machine."""
    host, port = listener.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = socket.gethostname()
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def allow_connections(count: int) -> None:
    """Let this process open the files that `count` connections need.

    Raises:
        ConfigError: the machine does not allow that many open files.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = count + REFUSED + OTHER_FILES
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise ConfigError(
            f"--connections {count} needs {needed} open files, and this machine allows {hard} for a process. Choose at "
            f"most --connections {max(1, hard - REFUSED - OTHER_FILES)}, or raise the limit (ulimit -Hn)."
        )
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


class DrainingServer(uvicorn.Server):
    """uvicorn server of an environment that lets running episodes end before it stops."""

    def __init__(self, server: EnvServer, listener: socket.socket) -> None:
        config = uvicorn.Config(
            server.app,
            http=connection_class(server.limits),
            log_level="warning",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=SHUTDOWN_S,
            # Some clients answer pings only while they wait for an observation. The system ends lost connections.
            ws_ping_timeout=None,
            ws_max_size=server.limits.body_bytes,
            ws_per_message_deflate=False,  # it takes memory for each connection
        )
        super().__init__(config)
        self._server, self._listener = server, listener
        self._drain_until: float | None = None

    def run_until_stopped(self) -> None:
        """Serve until SIGTERM or Ctrl-C; all sessions and hosts have ended when this returns."""
        self.run([self._listener])

    def drain(self) -> None:
        """Reject new sessions, and stop when all running episodes have ended or the drain time is over."""
        self._server.sessions.draining = True
        self._drain_until = time.monotonic() + self._server.limits.drain_s

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Drain on the first SIGTERM; stop at once on a second one or on Ctrl-C."""
        if sig == signal.SIGTERM and self._drain_until is None:
            self.drain()
        else:
            self.should_exit = True

    async def on_tick(self, counter: int) -> bool:
        """Return True to stop; uvicorn calls this ten times a second."""
        if self._drain_until is not None and (
            self._server.sessions.running == 0 or time.monotonic() > self._drain_until
        ):
            self.should_exit = True
        return await super().on_tick(counter)
