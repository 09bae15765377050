"""Command `verl-agent serve`: serve one environment over HTTP until SIGTERM or Ctrl-C."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Annotated, Any

from pydantic import Field
from pydantic.dataclasses import dataclass

from verl_agent.envs.hosts.host import CallLimits
from verl_agent.envs.hosts.local import process_pool
from verl_agent.envs.hosts.slot import PoolLimits
from verl_agent.envs.http.auth import check_token, is_loopback
from verl_agent.envs.http.run_server import DrainingServer, allow_connections, bind_listener, url_of
from verl_agent.envs.http.server import EnvServer, known_dialects
from verl_agent.envs.http.settings import TOKEN_VARIABLE, Count, Seconds, ServerLimits
from verl_agent.envs.http.task_index import TaskIndex
from verl_agent.envs.registry import make_env
from verl_agent.envs.session import SessionPool
from verl_agent.errors import ConfigError, EnvError, did_you_mean
from verl_agent.oversight.approval import Approval, ApprovedPool
from verl_agent.oversight.rules import read_rules
from verl_agent.sections import STRICT

OPENENV = "openenv"
"""Protocol of every server."""
WAIT_S = 5.0
"""Seconds that a new session waits for a free slot before the server answers 503."""


@dataclass(frozen=True, slots=True, config=STRICT)
class ServeSettings:
    """Options of `verl-agent serve`."""

    env: str
    """Registered name of the environment."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of its adapter."""
    split: str = "train"
    """Split to which item numbers refer."""
    host: str = "127.0.0.1"
    """Address to listen at; an address that other machines reach needs a token."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    """Port to listen at; 0 for any free one."""
    token: str | None = None
    """Token that clients must send, or None."""
    hosts: Count = 2
    """Most host processes for sessions."""
    timeout_s: Seconds = 60.0
    """Timeout of one call into the environment in seconds."""
    limits: ServerLimits = field(default_factory=ServerLimits)
    """Limits of requests and sessions."""
    approve: str | None = None
    """YAML file of an approval policy whose rules decide on each action; None to carry out every action."""

    protocol: str | None = None
    """`openenv` for the protocol of every server alone, the name of a dialect to speak besides, or None for all."""

    def __post_init__(self) -> None:
        known = (OPENENV, *known_dialects())
        if self.protocol is not None and self.protocol not in known:
            raise ConfigError(f"--protocol {self.protocol} is unknown. {did_you_mean(self.protocol, known)}")
        check_token(self.host, self.token)


def serve_until_stopped(settings: ServeSettings, report: Callable[[str], None]) -> None:
    """Listen, print the URL, and serve until the server is stopped; all hosts have ended when this returns.

    Raises:
        ConfigError: the environment, split or an option is unknown, the address cannot be used, the machine does not
            allow as many connections, or the approval policy is not allowed, or the environment fails to begin its
            first task.
    """
    tasks = TaskIndex(settings.env, settings.options, settings.split)
    pool = approved_pool(settings)
    allow_connections(settings.limits.connections)
    listener = bind_listener(settings.host, settings.port)
    asyncio.run(begin_first_task(settings, tasks))
    dialects = None if settings.protocol is None else [settings.protocol][settings.protocol == OPENENV :]
    server = EnvServer(tasks, pool, settings.limits, settings.token, dialects)
    for line in announcement(settings, tasks, url_of(listener)):
        report(line)
    DrainingServer(server, listener).run_until_stopped()
    report("stopped.")


async def begin_first_task(settings: ServeSettings, tasks: TaskIndex) -> None:
    """Begin the first task in a separate host, so that a missing requirement is reported before the server serves.

    Raises:
        ConfigError: the environment fails to begin the task.
    """
    pool, item = new_pool(settings), tasks.numbered[0]
    try:
        await pool.reset(await pool.open(), item)
    except EnvError as error:
        raise ConfigError(f"env {settings.env!r} fails to begin task {item.id!r}: {error}") from error
    finally:
        await pool.shutdown()


def new_pool(settings: ServeSettings) -> SessionPool:
    """Return a pool of host processes for the sessions."""
    return process_pool(
        make_env(settings.env, settings.options),
        CallLimits(settings.timeout_s),
        PoolLimits(count=settings.hosts, wait_s=WAIT_S),
    )


def approved_pool(settings: ServeSettings) -> SessionPool:
    """Return the pool of `new_pool` behind the approval policy, if there is one."""
    if settings.approve is None:
        return new_pool(settings)
    env = make_env(settings.env, settings.options)
    rules = read_rules(settings.approve, "--approve", env)
    return ApprovedPool(new_pool(settings), Approval(rules, env.describe_action))


def announcement(settings: ServeSettings, tasks: TaskIndex, url: str) -> list[str]:
    """Return the lines that the command prints at start: URL, tasks, and commands that use the server."""
    numbered = f"item numbers 0 to {len(tasks.numbered) - 1} refer to split {tasks.split!r}"
    lines = [
        f"{tasks.env} at {url}: {len(tasks)} tasks; {numbered}.",
        f"  train against it:  env.name=http env.options=null 'env.options={{env: {tasks.env}, urls: [{url}]}}'",
        f"  OpenEnv's clients:  GenericEnvClient(base_url={url!r})   AgentGym's: env_server_base={url}",
        f"  check it:          curl {url}/health   also /info /tasks /stats /metrics",
    ]
    if settings.token is not None:
        lines.append(f"  Clients need the token: set {TOKEN_VARIABLE} for them, or send Authorization: Bearer <token>.")
    elif is_loopback(settings.host):
        lines.append(
            f"  Only this machine can call it. For other machines: --host 0.0.0.0, with a token in {TOKEN_VARIABLE}."
        )
    lines.append(f"  SIGTERM lets running episodes end within {settings.limits.drain_s:g} s; Ctrl-C stops at once.")
    return lines
