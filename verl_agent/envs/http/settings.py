"""Options of the HTTP environment and limits of a server."""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from verl_agent.errors import ConfigError
from verl_agent.sections import STRICT

OWN, AGENTGYM = "verl-agent", "agentgym"
TOKEN_VARIABLE = "VERL_AGENT_TOKEN"
"""Environment variable with the token, for servers and for their clients."""
RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")
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
    body_bytes: Count = 8 * 2**20
    """Most bytes of a request's body."""
    action_chars: Count = 2**20
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
    protocol: Literal["verl-agent", "agentgym"] = "verl-agent"
    """`verl-agent` for servers of `verl-agent serve`, `agentgym` for AgentGym's own."""
    items: Mapping[str, str | int] | None = None
    """Item numbers of each split, such as `0-373, 400`; only for `agentgym`."""
    instructions: str | None = None
    """First message of an episode, null for the default one; only for `agentgym`."""
    timeout_s: Seconds = 300.0
    """Timeout of one call in seconds."""
    success_reward: Annotated[float, Field(gt=0)] | None = None
    """Return from which a task counts as solved, null for that of the environment; only for `agentgym`."""

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
        if self.protocol == AGENTGYM and not self.items:
            raise ConfigError(
                "env.options.items is missing: AgentGym's servers do not list their tasks. Set the item numbers of "
                "each split, such as items: {train: 0-373, test: 374-473}."
            )
        only_agentgym = {"items": self.items, "instructions": self.instructions, "success_reward": self.success_reward}
        given = [f"env.options.{key}" for key, value in only_agentgym.items() if value is not None and value != {}]
        if self.protocol == OWN and given:
            raise ConfigError(
                f"{' and '.join(given)} would have no effect: allowed only with protocol=agentgym. Servers of "
                "verl-agent serve define them. Remove the option."
            )
        for split, text in (self.items or {}).items():
            parse_numbers(split, str(text))

    @property
    def servers(self) -> tuple[str, ...]:
        """Base URLs without a slash at the end."""
        urls = (self.urls,) if isinstance(self.urls, str) else self.urls
        return tuple(url.rstrip("/") for url in urls)

    @property
    def item_numbers(self) -> Mapping[str, Sequence[int]]:
        """Item numbers of each split."""
        return {split: parse_numbers(split, str(text)) for split, text in (self.items or {}).items()}


def parse_numbers(split: str, text: str) -> list[int]:
    """Return the item numbers of a split, in the order of a text such as `0-3, 7`."""
    numbers: list[int] = []
    for part in text.split(","):
        match = RANGE.fullmatch(part.strip())
        if match is None:
            raise ConfigError(
                f"env.options.items.{split}={text!r} is not allowed. Allowed: numbers and ranges, such as '0-373, 400'."
            )
        first = int(match[1])
        numbers += range(first, int(match[2] or first) + 1)
    if not numbers or len(set(numbers)) != len(numbers):
        raise ConfigError(
            f"env.options.items.{split}={text!r} is not allowed. Allowed: at least one number, and none twice."
        )
    return numbers
