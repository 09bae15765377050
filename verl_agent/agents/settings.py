"""Section `agent` of a recipe."""

from collections.abc import Mapping
from typing import Any

from pydantic import Field
from pydantic.dataclasses import dataclass

from verl_agent.sections import STRICT


@dataclass(frozen=True, slots=True, config=STRICT)
class AgentSettings:
    """Section `agent`: the agent that prompts the model and parses its replies."""

    name: str = "react"
    """Registered name of the agent."""
    options: Mapping[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the agent's constructor."""
    context: Mapping[str, Any] = Field(default_factory=dict)
    """Context window, see `verl_agent.agents.context.make_context`."""
