"""Serve one environment over HTTP until SIGTERM or Ctrl-C: `verl-agent serve`."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from verl_agent.envs.hosts.host import CallLimits
from verl_agent.envs.hosts.local import process_pool
from verl_agent.envs.hosts.slot import PoolLimits
from verl_agent.envs.http.auth import check_token, is_loopback
from verl_agent.envs.http.items import TaskIndex
from verl_agent.envs.http.limits import Limits
from verl_agent.envs.http.run_server import Listener, bind, url_of
from verl_agent.envs.http.server import EnvServer
from verl_agent.envs.http.settings import TOKEN_VARIABLE
from verl_agent.envs.registry import make_env
from verl_agent.envs.session import SessionPool
from verl_agent.errors import ConfigError, EnvError
from verl_agent.types import TaskItem

WAIT_S = 5.0
"""Seconds that a client waits for a place before it is told that there is none."""


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """What is served, and to whom.

    Attributes:
        env: registered name of the environment.
        options: keyword arguments of its adapter.
        split: what the numbers of items count in.
        host: address to listen at; one that other machines reach needs a token.
        port: 0 for any that is free.
        token: what clients must send, or None.
        hosts: most processes that sessions live in.
        timeout_s: seconds that one call into the environment may take.
        limits: of requests and sessions.
    """

    env: str
    options: Mapping[str, Any] = field(default_factory=dict)
    split: str = "train"
    host: str = "127.0.0.1"
    port: int = 8000
    token: str | None = None
    hosts: int = 2
    timeout_s: float = 60.0
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        check_token(self.host, self.token)
        if self.hosts < 1:
            raise ConfigError(f"--hosts must be >= 1, got {self.hosts}.")
        if not self.timeout_s > 0:
            raise ConfigError(f"--timeout must be > 0 seconds, got {self.timeout_s}.")


def serve(settings: ServeSettings, say: Callable[[str], None]) -> None:
    """Listen, say where, and serve until told to stop; hosts have ended when this returns.

    Args:
        settings: what is served.
        say: shows a line to the person who started the server.

    Raises:
        ConfigError: no such environment, split or option, an address that cannot be listened at, or an environment
            that does not begin its first task.
    """
    tasks = TaskIndex(settings.env, settings.options, settings.split)
    listener = bind(settings.host, settings.port)
    asyncio.run(try_out(settings, tasks.numbered[0]))
    server = EnvServer(tasks, new_pool(settings), settings.limits, settings.token)
    for line in announcement(settings, tasks, url_of(listener)):
        say(line)
    Listener(server, listener).run_here()
    say("stopped.")


async def try_out(settings: ServeSettings, item: TaskItem) -> None:
    """Begin a task in a host of its own, so that what the environment lacks is said before anybody calls.

    Raises:
        ConfigError: the environment does not start.
    """
    pool = new_pool(settings)
    try:
        await pool.reset(await pool.open(), item)
    except EnvError as error:
        raise ConfigError(f"env {settings.env!r} does not begin task {item.id!r}: {error}") from error
    finally:
        await pool.shutdown()


def new_pool(settings: ServeSettings) -> SessionPool:
    """Host processes for the sessions."""
    return process_pool(
        make_env(settings.env, settings.options),
        CallLimits(settings.timeout_s, settings.limits.idle_s),
        PoolLimits(count=settings.hosts, wait_s=WAIT_S),
    )


def announcement(settings: ServeSettings, tasks: TaskIndex, url: str) -> list[str]:
    """Where the server listens and how it is called, in lines."""
    numbered = f"numbers 0 to {len(tasks.numbered) - 1} are the split {tasks.split!r}"
    lines = [
        f"{tasks.env} at {url}: {len(tasks)} tasks; {numbered}.",
        f"  train against it:  env.name=http 'env.options={{env: {tasks.env}, urls: [{url}]}}'",
        f"  AgentGym's clients: env_server_base={url}",
        f"  look at it:        curl {url}/health   also /info /tasks /stats /metrics",
    ]
    if settings.token is not None:
        lines.append(f"  Clients need the token: set {TOKEN_VARIABLE} for them, or send Authorization: Bearer <token>.")
    elif is_loopback(settings.host):
        lines.append(f"  Only this machine can call it. For others: --host 0.0.0.0, with a token in {TOKEN_VARIABLE}.")
    lines.append(f"  SIGTERM lets running episodes end, at most {settings.limits.drain_s:g} s; Ctrl-C stops at once.")
    return lines
