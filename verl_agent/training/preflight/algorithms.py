"""Test whether a run trains a critic."""

from typing import Any


def has_critic(config: Any) -> bool:
    """Return True if verl will train a critic (trainer/ppo/utils.py, `need_critic`)."""
    return bool(config.critic.enable or (config.critic.enable is None and config.algorithm.adv_estimator == "gae"))
