"""Section `agent` of a recipe."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from verl_agent.errors import ConfigError


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """Section `agent`: the words around the environment.

    Attributes:
        name: registered name of the agent.
        options: keyword arguments of it.
        context: what the model is shown of the conversation, see `verl_agent.agents.context`.
    """

    name: str = "react"
    options: Mapping[str, Any] = field(default_factory=dict)
    context: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ConfigError(f"agent.name must be the name of an agent, such as react, got {self.name!r}.")
        for name in ("options", "context"):
            if not isinstance(getattr(self, name), Mapping):
                raise ConfigError(f"agent.{name} must be a mapping such as {{}}, got {getattr(self, name)!r}.")
