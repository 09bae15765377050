"""Sections of a composed config as the rest of the package takes them."""

from typing import Any

from omegaconf import OmegaConf

from verl_agent.agents.settings import AgentSettings
from verl_agent.config.settings import section


def agent_settings(config: Any) -> AgentSettings:
    """Section `agent`.

    Args:
        config: the composed config, or a section that holds `agent`.

    Raises:
        ConfigError: a key or a value of it is not allowed.
    """
    chosen: Any = OmegaConf.to_container(config.agent)
    return section("agent", AgentSettings, chosen)


def env_options(config: Any) -> dict[str, Any]:
    """Keyword arguments of the adapter, `env.options`."""
    return {str(key): value for key, value in OmegaConf.to_object(config.env.options).items()}
