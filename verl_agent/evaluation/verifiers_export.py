"""Environments of this package as task sets of verifiers 0.4.0 (API v1), played by the episode loop.

`verl-agent export-env NAME --as verifiers` writes a module with what `export` returns, and vf-eval plays that module.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import verifiers.v1 as vf
from pydantic import Field
from verifiers.v1.runtimes import SubprocessConfig

from verl_agent.agents.registry import make_agent
from verl_agent.agents.settings import AgentSettings
from verl_agent.envs.model_api.chat import ChatMessage, call_answers, call_text, with_calls
from verl_agent.envs.program.verifiers_harness import TOOLS
from verl_agent.envs.registry import list_tasks, make_env
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
    agent_options: dict[str, Any] = Field(default_factory=dict)
    """`agent.options`"""
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
        self._called: list[str] = []

    async def reply(self, messages: Sequence[Message]) -> Reply:
        """Send what the agent has not heard yet and return its answer."""
        segment = await self._interaction.turn(_wired(messages[self._heard :], self._called))
        if segment.terminated:
            return Reply("", truncated_by=StopReason.EPISODE_TOKENS)
        self._heard = len(messages) + 1
        message = segment.messages[-1]
        calls = message.tool_calls or ()
        self._called = [call.id for call in calls]
        return Reply(with_calls(message.content or "", [call_text(call.name, call.arguments) for call in calls]))


def _wired(messages: Sequence[Message], called: Sequence[str]) -> list[dict[str, Any]]:
    """Return messages for verifiers: the answers to calls, or texts of the user where the agent wrote calls as text."""
    first, *others = messages
    if not called:
        return [{"role": one["role"].replace("tool", "user"), "content": one["content"]} for one in messages]
    answers = call_answers(ChatMessage("tool", first["content"], answers=tuple(first.get("answers", ()))), len(called))
    told = [{"role": "tool", "tool_call_id": key, "content": one} for key, one in zip(called, answers, strict=True)]
    return [*told, *_wired(others, ())] if others else told


class PlayerConfig(vf.EnvConfig):
    """The one agent. It runs on this machine: `ReplyHarness` executes nothing."""

    player: vf.AgentConfig = vf.AgentConfig(runtime=SubprocessConfig())


class VerifiersEnv(vf.Env[PlayerConfig]):
    """Plays a task with the episode loop; the environment runs in this process."""

    async def run(self, task: vf.Task, agents: vf.Agents) -> None:
        """Play one episode and record its return; an environment error fails it."""
        config: Any = self.taskset.config
        adapter = make_env(config.env, config.options)
        agent = make_agent(AgentSettings(config.agent, config.agent_options), adapter.action_format)
        item = TaskItem(config.env, task.data.id, task.data.data, task.data.category)
        async with agents.player.interaction(task) as interaction:
            interaction.trace.info[TOOLS] = {"tools": agent.tools, "parallel": agent.parallel}
            policy, limits = InteractionPolicy(interaction), EpisodeLimits(config.max_turns, config.timeout_s)
            episode = await play_episode(item, adapter.new_session(), agent, policy, limits)
        if not episode.stop.valid:
            raise RuntimeError(f"{episode.stop}: {episode.error}")
        interaction.trace.record_reward("return", episode.reward)
        interaction.trace.info["stop"] = str(episode.stop)


def export(name: str, **defaults: Any) -> tuple[type[vf.Taskset[Any, Any]], type[VerifiersEnv]]:
    """Return the task set and the environment of an adapter.

    Args:
        defaults: other values than those of `AdapterConfig`, which vf-eval may change again.
    """
    known = AdapterConfig(env=name, **defaults)

    class Config(AdapterConfig):
        env: str = name
        options: dict[str, Any] = known.options
        agent: str = known.agent
        agent_options: dict[str, Any] = known.agent_options
        split: str = known.split
        max_turns: int = known.max_turns

    class Tasks(vf.Taskset[AdapterTask, Config]):
        def load(self) -> Iterator[AdapterTask]:
            for item in list_tasks(make_env(self.config.env, self.config.options), self.config.split).values():
                data = AdapterData(id=item.id, name=item.id, data=dict(item.data), category=item.category)
                yield AdapterTask(data, self.config.task)

    return Tasks, VerifiersEnv
