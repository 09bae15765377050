"""Functions of the public API: make environments and agents, and play episodes."""

import asyncio
from collections.abc import Mapping
from typing import Any

from verl_agent.agents import registry as agents
from verl_agent.agents.base import Agent
from verl_agent.agents.settings import AgentSettings
from verl_agent.envs import registry as envs
from verl_agent.envs.action_format import ActionFormat
from verl_agent.envs.base import EnvAdapter
from verl_agent.envs.settings import EnvSettings
from verl_agent.errors import ConfigError
from verl_agent.rollout import episode
from verl_agent.rollout.episode import EpisodeLimits
from verl_agent.rollout.function_policy import FunctionPolicy, ReplyFunction
from verl_agent.rollout.policy import Policy
from verl_agent.sections import section
from verl_agent.types import Episode, TaskItem


def make_env(name: str, **options: Any) -> EnvAdapter:
    """Return the environment registered as `name`.

    Args:
        name: registered name; `list_envs()` has all of them.
        options: keyword arguments of the adapter, the same as `env.options` in a recipe.

    Raises:
        ConfigError: the name is not registered, its package does not import, or an option is not allowed.
    """
    settings = section("env", EnvSettings, {"name": name, "options": options})
    return envs.make_env(settings.name, settings.options)


def list_envs() -> dict[str, str]:
    """Return the package that registers each environment, by the environment's name."""
    return envs.registered_envs()


def make_agent(
    name: str, action_format: ActionFormat, context: Mapping[str, Any] | None = None, **options: Any
) -> Agent:
    """Return an agent for one episode.

    Args:
        name: registered name, such as `react`.
        action_format: format of the environment, `env.action_format`.
        context: part of the conversation that the model sees, such as `{"keep": "last", "turns": 4}`; None for all.
        options: keyword arguments of the agent, the same as `agent.options` in a recipe.

    Raises:
        ConfigError: the name is not registered, or an argument or an option is not allowed.
    """
    if not isinstance(action_format, ActionFormat):
        raise ConfigError(f"action_format={action_format!r} is not an ActionFormat. Use env.action_format.")
    values = {"name": name, "options": options, "context": {} if context is None else context}
    return agents.make_agent(section("agent", AgentSettings, values), action_format)


async def play(
    item: TaskItem,
    env: EnvAdapter,
    *,
    policy: Policy | ReplyFunction,
    agent: str | Agent = "react",
    max_turns: int = 20,
    timeout_s: float = 60.0,
) -> Episode:
    """Play one task in a new session of `env`, from reset to its end.

    An environment that raises or exceeds its time ends the episode with `StopReason.ENV_ERROR`; the error is in
    `Episode.error`. Training and evaluation play through the same loop (`verl_agent.rollout.episode`).

    Args:
        item: one of `env.tasks(split)`.
        env: environment with its options; it is not changed and can be used again.
        policy: object with a method `reply`, or a function from messages to text. Either may be asynchronous.
        agent: registered name, or an agent that has not played yet.
        max_turns: turn limit, >= 1.
        timeout_s: seconds that one call into the environment may take, > 0. A call that blocks the thread is not
            interrupted; training and evaluation run environments in host processes for that reason.

    Raises:
        ConfigError: the agent is not registered, or an argument is not allowed.
    """
    if not isinstance(item, TaskItem):
        raise ConfigError(f"item={item!r:.100} is not a TaskItem. Use one of env.tasks(split).")
    if not isinstance(env, EnvAdapter):
        remedy = f"make_env({env!r})" if isinstance(env, str) else "make_env(name), or an instance of your adapter"
        raise ConfigError(f"env={env!r:.100} is not an EnvAdapter. Use {remedy}.")
    if not isinstance(agent, str | Agent):
        raise ConfigError(f"agent={agent!r:.100} is not an agent. Use a registered name, or make_agent(name, ...).")
    limits = section("", EpisodeLimits, {"max_turns": max_turns, "timeout_s": timeout_s})
    session = env.new_session()
    player = make_agent(agent, session.action_format) if isinstance(agent, str) else agent
    function: Any = getattr(policy, "reply", policy)
    return await episode.play_episode(item, session, player, FunctionPolicy(function, "policy"), limits)


def play_sync(
    item: TaskItem,
    env: EnvAdapter,
    *,
    policy: Policy | ReplyFunction,
    agent: str | Agent = "react",
    max_turns: int = 20,
    timeout_s: float = 60.0,
) -> Episode:
    """Play one task as `play` does, from code that is not asynchronous.

    Raises:
        RuntimeError: an event loop is running, as in a notebook; await `play` there.
        ConfigError: see `play`.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass  # no loop is running, so that asyncio.run() can start one
    else:
        raise RuntimeError("play_sync() cannot run inside an event loop, such as a notebook's. Use: await play(...)")
    return asyncio.run(play(item, env, policy=policy, agent=agent, max_turns=max_turns, timeout_s=timeout_s))
