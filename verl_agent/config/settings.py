"""Environments of a composed config: their sections, and the live environment and agents that these describe."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from verl_agent.agents.base import Agent
from verl_agent.agents.registry import make_agent
from verl_agent.agents.settings import AgentSettings
from verl_agent.config.reward_shaping import RewardShaping
from verl_agent.envs.base import EnvAdapter
from verl_agent.envs.registry import make_env
from verl_agent.envs.settings import EnvSettings
from verl_agent.envs.tasks import select_tasks
from verl_agent.errors import ConfigError
from verl_agent.horizon import Horizon
from verl_agent.rollout.settings import EpisodeSettings
from verl_agent.sections import section
from verl_agent.types import TaskItem


@dataclass(frozen=True, kw_only=True)
class AgentEnv:
    """An environment and the agent that acts in it. The live environment and its tasks are made once, when needed."""

    env: EnvSettings
    agent: AgentSettings = field(default_factory=AgentSettings)

    @cached_property
    def live(self) -> EnvAdapter:
        """Environment with its options. It is not played itself: pools and `new_session` make copies."""
        return make_env(self.env.name, self.env.options)

    def new_agent(self) -> Agent:
        """Return an agent for one episode.

        Raises:
            ConfigError: see `make_env` and `make_agent`.
        """
        return make_agent(self.agent, self.live.action_format)

    def tasks(self, source: str, key: str = "") -> list[TaskItem]:
        """Return the items of a split or a file, which are listed once; see `select_tasks`."""
        if source not in self._tasks:
            self._tasks[source] = select_tasks(self.live, source, key)
        return list(self._tasks[source])

    @cached_property
    def _tasks(self) -> dict[str, list[TaskItem]]:
        return {}


@dataclass(frozen=True, kw_only=True)
class RunEnv(AgentEnv):
    """One environment of a run, with the overrides of its entry in a mixture.

    Attributes:
        label: name in metrics and rows, unique in the run; the environment's own name if it is the only one.
        weight: weight of its tasks in a training step, relative to the other environments, > 0.
    """

    horizon: Horizon
    episode: EpisodeSettings
    credit: RewardShaping = field(default_factory=RewardShaping)
    label: str = ""
    weight: float = 1.0


def read_env(config: Mapping[str, Any]) -> AgentEnv:
    """Build the sections `env` and `agent` of a resolved config.

    Raises:
        ConfigError: `section` rejects one.
    """
    return AgentEnv(
        env=section("env", EnvSettings, config["env"]), agent=section("agent", AgentSettings, config["agent"])
    )


def read_run_env(config: Mapping[str, Any], label: str = "", weight: float = 1.0) -> RunEnv:
    """Build the sections `env`, `horizon`, `episode`, `agent` and `credit` of a resolved config of one environment.

    Those of a mixture are built by `verl_agent.config.mixture.run_envs`.

    Args:
        label: see `RunEnv`; empty for the name of the environment.
        weight: see `RunEnv`.

    Raises:
        ConfigError: a section is missing, or `section` rejects one.
    """
    for name in ("env", "horizon", "episode", "agent"):
        if not isinstance(config.get(name), Mapping):
            raise ConfigError(f"the config has no section {name!r}. Start from a recipe in recipes/.")
    env = section("env", EnvSettings, config["env"])
    return RunEnv(
        env=env,
        horizon=section("horizon", Horizon, config["horizon"]),
        episode=section("episode", EpisodeSettings, config["episode"]),
        agent=section("agent", AgentSettings, config["agent"]),
        credit=section("credit", RewardShaping, config.get("credit") or {}),
        label=label or env.name,
        weight=weight,
    )
