"""Options of the environment `http` and limits of a server."""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass

from verl_agent.errors import ConfigError
from verl_agent.sections import STRICT

OWN = "verl-agent"
TOKEN_VARIABLE = "VERL_AGENT_TOKEN"
"""Environment variable with the token, for servers and for their clients."""
RETRY_AFTER_S = 1
"""Seconds after which a client may retry if the server had no free slot."""
Count = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0)]


@dataclass(frozen=True, slots=True, config=STRICT)
class ServerLimits:
    """Limits of a server."""

    sessions: Count = 1024
    """Most open sessions; a further one is rejected until one is closed."""
    connections: Count = 2048
    """Most open connections; a request of a further one is answered with 503."""
    receive_s: Seconds = 30.0
    """Seconds in which a request must arrive, headers and body."""
    header_bytes: Count = 2**16
    """Most bytes of a request's line and headers."""
    body_bytes: Count = 8 * 2**20
    """Most bytes of a request's body, and of a message in a session."""
    action_chars: Count = 2**21
    """Most characters of an action."""
    idle_s: Seconds = 1800.0
    """Seconds without a call after which a session is closed."""
    drain_s: Seconds = 30.0
    """Seconds that running episodes have to end after SIGTERM."""


@dataclass(frozen=True, slots=True, config=STRICT)
class HttpSettings:
    """Section `env.options` of the environment `http`, as a recipe writes it."""

    env: str
    """Environment of the servers."""
    urls: Sequence[str] | str
    """Base URLs of the servers, at least one."""
    protocol: str = OWN
    """`verl-agent` for servers of `verl-agent serve`, or the name of another protocol, such as `agentgym`."""
    items: Mapping[str, str | int] | None = None
    """Item numbers of each split, such as `0-373, 400`; only for another protocol."""
    instructions: str | None = None
    """First message of an episode, null for the default one; only for another protocol."""
    timeout_s: Seconds = 300.0
    """Timeout of one call in seconds."""
    success_reward: Annotated[float, Field(gt=0)] | None = None
    """Return from which a task counts as solved, null for that of the environment; only for another protocol."""

    def __post_init__(self) -> None:
        if not self.env:
            raise ConfigError("env.options.env must name the environment of the servers, got ''.")
        if not self.urls:
            raise ConfigError("env.options.urls must hold at least one URL, such as http://127.0.0.1:8000.")
        for url in self.servers:
            if not re.fullmatch(r"https?://[^/\s]+(/\S*)?", url):
                raise ConfigError(f"env.options.urls={url!r} is not allowed. Allowed: URLs such as http://host:port.")
        if len(set(self.servers)) != len(self.servers):
            raise ConfigError(f"env.options.urls={list(self.servers)} lists a server twice. List each server once.")
        for_others = {"items": self.items, "instructions": self.instructions, "success_reward": self.success_reward}
        given = [f"env.options.{key}" for key, value in for_others.items() if value is not None and value != {}]
        if self.protocol == OWN and given:
            raise ConfigError(
                f"{' and '.join(given)} would have no effect: allowed only with protocol=agentgym. Servers of "
                "verl-agent serve define them. Remove the option."
            )

    @property
    def servers(self) -> tuple[str, ...]:
        """Base URLs without a slash at the end."""
        urls = (self.urls,) if isinstance(self.urls, str) else self.urls
        return tuple(url.rstrip("/") for url in urls)
