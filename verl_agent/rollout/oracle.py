"""An oracle as a policy: the moves of an environment, in the words of an agent, played as any episode is."""

import asyncio
from collections.abc import Sequence

from verl_agent.agents.base import Agent
from verl_agent.envs.base import EnvAdapter, Oracle
from verl_agent.errors import ConfigError
from verl_agent.rollout.episode import EpisodeLimits, play
from verl_agent.types import DemoAction, Episode, Message, Reply, TaskItem

ORACLE = "oracle"
"""What `model.path` of an evaluation is for the oracle of the environment."""
RECORD_IT = (
    "Record its episodes by an evaluation with model.path=oracle evaluation.purpose=collection, and learn from them: "
    "episodes.oracle=false episodes.records=[FOLDER]."
)


def demonstration_actions(env: EnvAdapter, item: TaskItem) -> Sequence[DemoAction]:
    """What solves `item`, known before it is played.

    Raises:
        ConfigError: the environment has no oracle for it, or one that has to see.
    """
    if env.oracle(item) is not None:
        raise ConfigError(f"the moves of env {item.env!r} depend on what its oracle sees. {RECORD_IT}")
    try:
        return env.demonstration(item)
    except NotImplementedError as error:
        raise ConfigError(f"env {item.env!r} has no oracle, so it gives no demonstrations: {error}") from error


class OraclePolicy:
    """Makes an oracle's moves in the words of an agent.

    Args:
        agent: one as the episode's, whose words may depend on what it has said.
        moves: in order; or what makes them, of which the agent then knows only those made so far.
    """

    def __init__(self, agent: Agent, moves: Sequence[DemoAction] | Oracle) -> None:
        self._agent, self._turn = agent, 0
        self._see = moves if callable(moves) else None
        self._moves = [] if callable(moves) else list(moves)

    async def reply(self, messages: Sequence[Message]) -> Reply:
        """See `Policy.reply`."""
        if self._see is not None:
            self._moves.append(self._see(messages[-1]["content"]))
        text = self._agent.render_demo(self._moves, self._turn)
        self._turn += 1
        return Reply(text)


def oracle_policy(item: TaskItem, env: EnvAdapter, agent: Agent) -> OraclePolicy:
    """The policy that solves `item`, whether its moves are known before or depend on what is seen.

    Raises:
        ConfigError: the environment has no oracle for it.
    """
    return OraclePolicy(agent, env.oracle(item) or demonstration_actions(env, item))


def demonstrate(item: TaskItem, env: EnvAdapter, agent: Agent) -> Episode:
    """The oracle's episode of one task, in the words of `agent`.

    Raises:
        ConfigError: the environment has no oracle whose moves are known before, or its oracle does not solve the task.
    """
    moves = demonstration_actions(env, item)
    policy = OraclePolicy(agent, moves)
    episode = asyncio.run(play(item, env, agent, policy, EpisodeLimits(max(len(moves), 1))))
    if not episode.success:
        raise ConfigError(f"the oracle of env {item.env!r} does not solve {item.id!r}: {episode.stop}. {episode.error}")
    return episode
