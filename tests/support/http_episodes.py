"""Episodes of the environment `http`, shared by the tests of its client."""

from collections.abc import Sequence
from typing import Any

from tests.support.fakes import ScriptedPolicy
from verl_agent.agents.plain import ReAct
from verl_agent.envs.http.client import HttpEnv
from verl_agent.envs.http.run_server import bind_listener, url_of
from verl_agent.rollout.episode import EpisodeLimits, play_episode
from verl_agent.types import DemoAction, Episode, TaskItem


def options(env: str, *urls: str, **more: Any) -> dict[str, Any]:
    """Return the options of the environment `http` for servers of `env`."""
    return {"env": env, "urls": list(urls), "timeout_s": 250, **more}


def unused_url() -> str:
    """Return a URL without a server."""
    with bind_listener("127.0.0.1", 0) as listener:
        return url_of(listener)


async def solve(item: TaskItem, chosen: dict[str, Any], actions: Sequence[DemoAction | str]) -> Episode:
    """Play actions as an agent renders them, and whole replies unchanged."""
    env = HttpEnv(**chosen)
    agent = ReAct(env.action_format)
    replies = [action if isinstance(action, str) else agent.render_demo([action], 0) for action in actions]
    return await play_episode(item, env, agent, ScriptedPolicy(replies), EpisodeLimits(len(actions), timeout_s=250))
