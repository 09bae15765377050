"""Environments of this package as task sets of verifiers 0.4.0 (API v1), played by the episode loop.

`verl-agent export-env NAME --as verifiers` writes a module with what `export` returns, and vf-eval plays that module.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import verifiers.v1 as vf
from pydantic import Field

from verl_agent.agents.registry import make_agent
from verl_agent.agents.settings import AgentSettings
from verl_agent.envs.registry import make_env
from verl_agent.rollout.episode import EpisodeLimits, play_episode
from verl_agent.types import Message, Reply, StopReason, TaskItem


class AdapterConfig(vf.TasksetConfig):
    """Settings of an exported environment; the keys are those of a recipe."""

    env: str
    """`env.name`"""
    options: dict[str, Any] = Field(default_factory=dict)
    """`env.options`"""
    agent: str = "act"
    """`agent.name`"""
    split: str = "test"
    """Split whose tasks are played."""
    max_turns: int = 30
    """Most replies of an episode, >= 1."""
    timeout_s: float = 60.0
    """`env.timeout_s`"""


class AdapterData(vf.TaskData):
    """Task of the adapter."""

    data: dict[str, Any]
    category: str


class AdapterTask(vf.Task[AdapterData]):
    """Task without scoring of its own: `VerifiersEnv` records the return."""


class InteractionPolicy:
    """Policy whose replies are those of verifiers' agent; see `Policy`."""

    def __init__(self, interaction: Any) -> None:
        self._interaction = interaction
        self._heard = 0

    async def reply(self, messages: Sequence[Message]) -> Reply:
        """Send what the agent has not heard yet and return its answer."""
        segment = await self._interaction.turn([dict(message) for message in messages[self._heard :]])
        if segment.terminated:
            return Reply("", truncated_by=StopReason.EPISODE_TOKENS)
        self._heard = len(messages) + 1
        return Reply(segment.messages[-1].content or "")


class PlayerConfig(vf.EnvConfig):
    """The one agent."""

    player: vf.AgentConfig = vf.AgentConfig()


class VerifiersEnv(vf.Env[PlayerConfig]):
    """Plays a task with the episode loop; the environment runs in this process."""

    async def run(self, task: vf.Task, agents: vf.Agents) -> None:
        """Play one episode and record its return; an environment error fails it."""
        config: Any = self.taskset.config
        adapter = make_env(config.env, config.options)
        agent = make_agent(AgentSettings(config.agent), adapter.action_format)
        item = TaskItem(config.env, task.data.id, task.data.data, task.data.category)
        async with agents.player.interaction(task) as interaction:
            policy, limits = InteractionPolicy(interaction), EpisodeLimits(config.max_turns, config.timeout_s)
            episode = await play_episode(item, adapter.new_session(), agent, policy, limits)
        if not episode.stop.valid:
            raise RuntimeError(f"{episode.stop}: {episode.error}")
        interaction.trace.record_reward("return", episode.reward)
        interaction.trace.info["stop"] = str(episode.stop)


def export(name: str) -> tuple[type[vf.Taskset[Any, Any]], type[VerifiersEnv]]:
    """Return the task set and the environment of an adapter."""

    class Config(AdapterConfig):
        env: str = name

    class Tasks(vf.Taskset[AdapterTask, Config]):
        def load(self) -> Iterator[AdapterTask]:
            for item in make_env(self.config.env, self.config.options).tasks(self.config.split):
                data = AdapterData(id=item.id, name=item.id, data=dict(item.data), category=item.category)
                yield AdapterTask(data, self.config.task)

    return Tasks, VerifiersEnv
