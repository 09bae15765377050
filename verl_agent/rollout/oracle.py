"""An oracle as a policy: the moves of an environment, in the words of an agent, played as any episode is."""

import asyncio
from collections.abc import Sequence

from verl_agent.agents.base import Agent
from verl_agent.envs.base import EnvAdapter
from verl_agent.errors import ConfigError
from verl_agent.rollout.episode import EpisodeLimits, play
from verl_agent.types import Episode, Message, Move, Reply, TaskItem


def moves_of(env: EnvAdapter, item: TaskItem) -> Sequence[Move]:
    """What solves `item`.

    Raises:
        ConfigError: the environment has no oracle for it.
    """
    try:
        return env.demonstration(item)
    except NotImplementedError as error:
        raise ConfigError(f"env {item.env!r} has no oracle, so it gives no demonstrations: {error}") from error


class OraclePolicy:
    """Makes an oracle's moves in the words of an agent.

    Args:
        agent: that of the episode, whose words may depend on what it has said.
        moves: in order.
    """

    def __init__(self, agent: Agent, moves: Sequence[Move]) -> None:
        self._agent, self._moves, self._turn = agent, moves, 0

    async def reply(self, messages: Sequence[Message]) -> Reply:
        """See `Policy.reply`."""
        text = self._agent.write(self._moves, self._turn)
        self._turn += 1
        return Reply(text)


def demonstrate(item: TaskItem, env: EnvAdapter, agent: Agent) -> Episode:
    """The oracle's episode of one task, in the words of `agent`.

    Raises:
        ConfigError: the environment has no oracle, or its oracle does not solve the task.
    """
    moves = moves_of(env, item)
    policy = OraclePolicy(agent, moves)
    episode = asyncio.run(play(item, env, agent, policy, EpisodeLimits(max(len(moves), 1))))
    if not episode.success:
        raise ConfigError(f"the oracle of env {item.env!r} does not solve {item.id!r}: {episode.stop}. {episode.error}")
    return episode
