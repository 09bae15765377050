"""Sections `agent` and `agent.context` of a recipe."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from verl_agent.sections import Needs, settings

Count = Annotated[int, Field(ge=1)]


@settings("agent")
class AgentSettings:
    """The agent that prompts the model and parses its replies."""

    name: str = "react"
    """Registered name: act, react, think, plan, tools or raw, or that of another package."""
    options: Mapping[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the agent's constructor; each agent has instructions and turns_left."""
    context: Mapping[str, Any] = Field(default_factory=dict)
    """Part of the conversation that the model sees."""


@settings("agent.context")
class ContextSettings:
    """The part of the conversation that the model sees."""

    keep: Literal["all", "last", "summary"] = "all"
    """`all` shows everything; `last` shows the latest observations; `summary` shows the model's own summary and the
    latest turns."""
    turns: Annotated[Count, Needs("agent.context.keep", "last", "summary")] = 4
    """Number of last turns that always stay complete."""
    stride: Annotated[Count, Needs("agent.context.keep", "last", "summary")] = 1
    """Number of turns that are removed at once. With 1 nearly every turn begins a new sample. A larger stride makes
    fewer samples, and the engine reuses its cache."""
