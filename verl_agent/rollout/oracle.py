"""Oracles as policies: the actions of an environment's oracle, rendered by an agent and played by the episode loop."""

import asyncio
from collections.abc import Sequence

from typing_extensions import override

from verl_agent.agents.base import Agent
from verl_agent.envs.base import EnvAdapter, Oracle
from verl_agent.envs.session import Session
from verl_agent.errors import ConfigError
from verl_agent.rollout.actions import REJECTED
from verl_agent.rollout.episode import EpisodeLimits, play_episode
from verl_agent.rollout.policy import Policy
from verl_agent.types import DemoAction, Episode, Message, Reply, TaskItem

ORACLE = "oracle"
"""Value of `model.path` with which an evaluation plays the environment's oracle."""
NO_ACTION = "All actions of the plan are played."
"""Reply of a fixed plan that has ended before the task, because an action was rejected or failed."""
RECORD_IT = (
    "Record its episodes by an evaluation with model.path=oracle evaluation.purpose=collection, and name their folder: "
    "episodes.oracle=false episodes.records=[FOLDER], or horizon.replay.records=[FOLDER]."
)


class OraclePolicy(Policy):
    """Policy that replies with the actions of an oracle.

    Args:
        actions: all actions in order, or a function that returns the next action for the latest observation. After a
            rejected action, a plan goes on with its next action, and a function is asked again about the same
            observation.
    """

    def __init__(self, agent: Agent, actions: Sequence[DemoAction] | Oracle) -> None:
        self._agent, self._turn = agent, 0
        self._next_action = actions if callable(actions) else None
        self._actions = [] if callable(actions) else list(actions)

    @override
    async def reply(self, messages: Sequence[Message]) -> Reply:
        if self._next_action is not None:
            others = (one["content"] for one in reversed(messages) if one["role"] != "assistant")
            shown = next(text for text in others if REJECTED not in text)
            self._actions.append(self._next_action(self._agent.without_turns_left(shown)))
        if self._turn >= len(self._actions):
            return Reply(NO_ACTION)
        text = self._agent.render_demo(self._actions, self._turn)
        self._turn += 1
        return Reply(text)


def oracle_policy(item: TaskItem, env: EnvAdapter, agent: Agent) -> OraclePolicy:
    """Return the policy that solves `item` with `env.oracle`, or else with `env.demonstration`.

    Raises:
        ConfigError: the environment has no oracle.
    """
    return OraclePolicy(agent, env.oracle(item) or demonstration_actions(env, item))


async def play_oracle(item: TaskItem, env: EnvAdapter, session: Session, agent: Agent, max_turns: int) -> Episode:
    """Play `item` in a session of `env` with its oracle.

    Raises:
        ConfigError: the environment has no oracle.
    """
    policy = oracle_policy(item, env, agent)
    return await play_episode(item, session, agent, policy, EpisodeLimits(max_turns, None))


def planned_actions(env: EnvAdapter, item: TaskItem) -> Sequence[DemoAction]:
    """Return the actions that solve `item`, known before it is played.

    Raises:
        ConfigError: the oracle's actions depend on observations.
        NotImplementedError: the task has no oracle.
    """
    if env.oracle(item) is not None:
        raise ConfigError(f"the actions of env {item.env!r}'s oracle depend on its observations. {RECORD_IT}")
    return env.demonstration(item)


def demonstration_actions(env: EnvAdapter, item: TaskItem) -> Sequence[DemoAction]:
    """Return the actions that solve `item`, known before it is played.

    Raises:
        ConfigError: the environment has no oracle, or one whose actions depend on observations.
    """
    try:
        return planned_actions(env, item)
    except NotImplementedError as error:
        raise ConfigError(f"env {item.env!r} has no oracle, so it has no demonstrations: {error}") from error


def demonstrate(item: TaskItem, env: EnvAdapter, agent: Agent, max_turns: int = 1) -> Episode:
    """Play `item` with the actions of `env.demonstration`, and return the episode.

    Args:
        max_turns: turn limit, which an agent with `turns_left` tells; raised to the number of actions if it is below.

    Raises:
        ConfigError: see `demonstration_actions`; or the oracle does not solve the task.
    """
    actions = demonstration_actions(env, item)
    policy = OraclePolicy(agent, actions)
    episode = asyncio.run(play_episode(item, env, agent, policy, EpisodeLimits(max(len(actions), max_turns))))
    if not episode.success:
        raise ConfigError(f"the oracle of env {item.env!r} does not solve {item.id!r}: {episode.stop}. {episode.error}")
    return episode
