"""All attempts of a player at one episode."""

from collections.abc import Callable
from typing import Any

from verl_agent.agents.base import Agent
from verl_agent.envs.session import Session
from verl_agent.rollout.episode import AtLimit, EpisodeLimits, Oversight
from verl_agent.rollout.player import Player
from verl_agent.rollout.seeds import EpisodeSeed
from verl_agent.types import Episode, TaskItem


async def play_until_valid(
    item: TaskItem,
    new_session: Callable[[], Session],
    new_agent: Callable[[], Agent],
    new_policy: Callable[[], Any],
    limits: EpisodeLimits,
    overseer: Oversight | None = None,
    at_limit: AtLimit | None = None,
) -> list[Episode]:
    """Return the attempts; see `Player`."""
    player = Player[Any](new_agent, new_session, lambda item, seed: new_policy(), limits, overseer)
    return (await player.play(item, EpisodeSeed(1, "test", item.env, item.id, 0, 0), at_limit)).attempts
