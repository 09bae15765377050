"""Real servers for tests: sessions run in this process, uvicorn in a thread on a loopback port."""

import asyncio
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import httpx
import uvicorn
from starlette.applications import Starlette

from tests.support.fakes import talk_class
from verl_agent.envs.base import EnvAdapter, Hosting
from verl_agent.envs.hosts.host import CallLimits
from verl_agent.envs.hosts.local import inline_pool
from verl_agent.envs.hosts.pool import HostPool
from verl_agent.envs.hosts.slot import PoolLimits
from verl_agent.envs.http.run_server import DrainingServer, bind_listener, url_of
from verl_agent.envs.http.server import EnvServer
from verl_agent.envs.http.settings import ServerLimits
from verl_agent.envs.http.task_index import TaskIndex
from verl_agent.envs.session import SessionPool

HTTP = httpx.Client(timeout=250)


def pool_of(
    adapter: type[EnvAdapter],
    options: Mapping[str, Any] | None = None,
    slots: int = 64,
    timeout_s: float = 250.0,
    wait_s: float = 0.1,
) -> HostPool:
    """Return a pool that runs sessions of `adapter` in this process."""
    limits = PoolLimits(count=1, wait_s=wait_s)
    return inline_pool(adapter(**options or {}), CallLimits(timeout_s, grace_s=0.3), limits, Hosting(sessions=slots))


class Running:
    """Server that runs in a thread.

    Attributes:
        uvicorn: uvicorn's server object.
        url: base URL.
    """

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
        assert not self._thread.is_alive(), "the server does not stop"

    def die(self) -> None:
        """Close all connections without an answer, and stop."""
        for connection in list(self.uvicorn.server_state.connections):
            self._loop.call_soon_threadsafe(connection.transport.abort)
        self.stop()


class RunningEnv(Running):
    """Server of `verl-agent serve` in a thread."""

    def __init__(self, server: EnvServer, pool: SessionPool, port: int) -> None:
        listening = bind_listener("127.0.0.1", port)
        self.server, self.pool, self.draining_server = server, pool, DrainingServer(server, listening)
        super().__init__(self.draining_server, listening)

    def drop_sessions(self) -> None:
        """End all sessions, as if they had been idle for too long."""
        closing = [session.close() for session in list(self.server.sessions.open_ones)]
        for one in closing:
            asyncio.run_coroutine_threadsafe(one, self._loop).result(30)


@contextmanager
def serving(
    env: str,
    pool: SessionPool,
    split: str = "train",
    limits: ServerLimits | None = None,
    token: str | None = None,
    port: int = 0,
) -> Iterator[RunningEnv]:
    """Run a server of `verl-agent serve` in a context."""
    running = RunningEnv(EnvServer(TaskIndex(env, {}, split), pool, limits or ServerLimits(), token), pool, port)
    try:
        yield running
    finally:
        running.stop()


def talking(limits: ServerLimits | None = None, token: str | None = None, **options: Any) -> Any:
    """Serve an environment that fails on demand."""
    return serving("guess_number", pool_of(talk_class(), options), limits=limits, token=token)


@contextmanager
def serving_app(app: Starlette) -> Iterator[Running]:
    """Run any other server in a context."""
    running = Running(uvicorn.Server(uvicorn.Config(app, log_level="warning")), bind_listener("127.0.0.1", 0))
    try:
        yield running
    finally:
        running.stop()


def post(running: Running, path: str, body: Any = None, **options: Any) -> httpx.Response:
    """Send a POST request with a JSON body."""
    return HTTP.post(running.url + path, json=body, **options)


def begin(running: RunningEnv, item: Any = 0) -> int:
    """Open a session, begin a task in it, and return its id."""
    session = int(post(running, "/create").json()["id"])
    answer = post(running, "/reset", {"id": session, "data_idx": item})
    assert answer.status_code == 200, answer.text
    return session


def error_of(answer: httpx.Response, status: int) -> str:
    """Return the reason of an answer that must be an error with this status."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    assert list(answer.json()) == ["error"]
    return str(answer.json()["error"])
