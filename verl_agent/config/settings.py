"""Environments of a composed config: their sections, and the live environment and agents that these describe."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from verl_agent.agents.base import Agent
from verl_agent.agents.registry import make_agent
from verl_agent.agents.settings import AgentSettings
from verl_agent.config.reward_shaping import RewardShaping
from verl_agent.envs.base import EnvAdapter
from verl_agent.envs.judge.judge import Judge
from verl_agent.envs.judge.settings import JudgeSettings
from verl_agent.envs.registry import make_env
from verl_agent.envs.settings import EnvSettings
from verl_agent.envs.tasks import select_tasks
from verl_agent.errors import ConfigError
from verl_agent.horizon import Horizon
from verl_agent.rollout.episode import EpisodeLimits
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
        if (only := self.live.only_agent) and self.agent.name != only:
            own = f"agent.name={self.agent.name!r} cannot act in env.name={self.env.name!r}."
            raise ConfigError(f"{own} Set agent.name={only}.")
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
    judge: JudgeSettings = field(default_factory=JudgeSettings)
    label: str = ""
    weight: float = 1.0

    def new_judge(self, run: Path, judges: int = 1) -> Judge | None:
        """Return the judge of the environment's episodes; None if its reward is that of the environment alone.

        Args:
            run: folder of the run or the evaluation.
            judges: number of judges of the run, which share the limits.
        """
        return None if self.judge.rubric is None else Judge(self.judge, run, self.label, judges)

    def limits(self, max_turns: int | None = None) -> EpisodeLimits:
        """Return the limits of an episode in a pool, which limits the time of each call itself.

        Args:
            max_turns: turn limit; None for that of an evaluation.
        """
        turns = self.horizon.turns_for_evaluation() if max_turns is None else max_turns
        return EpisodeLimits(turns, None, self.env.retries, self.env.on_action_error)


def read_env(config: Mapping[str, Any]) -> AgentEnv:
    """Build the sections `env` and `agent` of a resolved config.

    Raises:
        ConfigError: `section` rejects one.
    """
    return AgentEnv(
        env=section("env", EnvSettings, config["env"]), agent=section("agent", AgentSettings, config["agent"])
    )


def read_run_env(config: Mapping[str, Any], label: str = "", weight: float = 1.0) -> RunEnv:
    """Build the sections `env`, `horizon`, `episode`, `agent`, `credit` and `judge` of one environment.

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
        judge=section("judge", JudgeSettings, config.get("judge") or {}),
        label=label or env.name,
        weight=weight,
    )
