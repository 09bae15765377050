"""Composition of the sections that this package adds to verl's config."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from omegaconf import OmegaConf

from verl_agent.agents.settings import AgentSettings
from verl_agent.config.reward_shaping import RewardShaping
from verl_agent.envs.settings import EnvSettings
from verl_agent.errors import ConfigError
from verl_agent.horizon import Horizon
from verl_agent.rollout.settings import EpisodeSettings
from verl_agent.sections import section


@dataclass(frozen=True, slots=True)
class RunSettings:
    """All sections of this package for one environment.

    Attributes:
        env: section `env`.
        horizon: section `horizon`.
        episode: section `episode`.
        agent: section `agent`.
        credit: section `credit`.
    """

    env: EnvSettings
    horizon: Horizon
    episode: EpisodeSettings
    agent: AgentSettings = field(default_factory=AgentSettings)
    credit: RewardShaping = field(default_factory=RewardShaping)


def run_settings(config: Mapping[str, Any]) -> RunSettings:
    """Build the sections `env`, `horizon`, `episode`, `agent` and `credit` of a resolved config of one environment.

    Those of a mixture are built by `verl_agent.config.mixture.run_envs`.

    Raises:
        ConfigError: a section is missing, or `section` rejects one.
    """
    for name in ("env", "horizon", "episode", "agent"):
        if not isinstance(config.get(name), Mapping):
            raise ConfigError(f"the config has no section {name!r}. Start from a recipe in recipes/.")
    return RunSettings(
        section("env", EnvSettings, config["env"]),
        section("horizon", Horizon, config["horizon"]),
        section("episode", EpisodeSettings, config["episode"]),
        section("agent", AgentSettings, config["agent"]),
        section("credit", RewardShaping, config.get("credit") or {}),
    )


def agent_settings(config: Any) -> AgentSettings:
    """Build section `agent` of a composed config.

    Args:
        config: the composed config, or a section that holds `agent`.

    Raises:
        ConfigError: a key or a value of the section is not allowed.
    """
    values: Any = OmegaConf.to_container(config.agent)
    return section("agent", AgentSettings, values)


def env_options(config: Any) -> dict[str, Any]:
    """Return `env.options` of a composed config: keyword arguments of the adapter."""
    return {str(key): value for key, value in OmegaConf.to_object(config.env.options).items()}
