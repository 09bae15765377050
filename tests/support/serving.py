"""Real servers for tests: sessions in this process, and uvicorn on a loopback port in a thread."""

import asyncio
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import uvicorn
from starlette.applications import Starlette

from verl_agent.envs.base import EnvAdapter, Hosting
from verl_agent.envs.hosts.host import CallLimits
from verl_agent.envs.hosts.local import inline_pool
from verl_agent.envs.hosts.pool import HostPool
from verl_agent.envs.hosts.slot import PoolLimits
from verl_agent.envs.http.items import TaskIndex
from verl_agent.envs.http.limits import Limits
from verl_agent.envs.http.run_server import Listener, bind, url_of
from verl_agent.envs.http.server import EnvServer
from verl_agent.envs.session import SessionPool


def pool_of(
    adapter: type[EnvAdapter],
    options: Mapping[str, Any] | None = None,
    places: int = 64,
    timeout_s: float = 250.0,
    wait_s: float = 0.1,
) -> HostPool:
    """Sessions of `adapter` in this process.

    Args:
        adapter: class of the environment.
        options: its keyword arguments.
        places: sessions at once.
        timeout_s: seconds that one call may take.
        wait_s: seconds that a new session waits for a place.
    """
    limits = PoolLimits(count=1, wait_s=wait_s)
    return inline_pool(adapter(**options or {}), CallLimits(timeout_s, grace_s=0.3), limits, Hosting(sessions=places))


class Running:
    """A server that runs in a thread, and where it is."""

    def __init__(self, uvicorn_server: uvicorn.Server, listening: socket.socket) -> None:
        self.uvicorn, self.url = uvicorn_server, url_of(listening)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, args=(listening,), daemon=True)
        self._thread.start()

    def _run(self, listening: socket.socket) -> None:
        self._loop.run_until_complete(self.uvicorn.serve([listening]))
        self._loop.close()

    def stop(self) -> None:
        self.uvicorn.should_exit = True
        self.join()

    def join(self) -> None:
        self._thread.join(30)
        assert not self._thread.is_alive(), "the server does not end"

    def die(self) -> None:
        """End in the middle of whatever it does: clients see their connections break."""
        for connection in list(self.uvicorn.server_state.connections):
            self._loop.call_soon_threadsafe(connection.transport.abort)
        self.stop()


class RunningEnv(Running):
    """One of our servers."""

    def __init__(self, server: EnvServer, pool: SessionPool, port: int) -> None:
        listening = bind("127.0.0.1", port)
        self.server, self.pool, self.listener = server, pool, Listener(server, listening)
        super().__init__(self.listener, listening)


@contextmanager
def serving(
    env: str,
    pool: SessionPool,
    split: str = "train",
    limits: Limits | None = None,
    token: str | None = None,
    port: int = 0,
) -> Iterator[RunningEnv]:
    """One of our servers, for as long as the context lasts."""
    running = RunningEnv(EnvServer(TaskIndex(env, {}, split), pool, limits or Limits(), token), pool, port)
    try:
        yield running
    finally:
        running.stop()


@contextmanager
def serving_app(app: Starlette) -> Iterator[Running]:
    """Any other server."""
    running = Running(uvicorn.Server(uvicorn.Config(app, log_level="warning")), bind("127.0.0.1", 0))
    try:
        yield running
    finally:
        running.stop()
