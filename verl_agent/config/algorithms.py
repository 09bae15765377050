"""Which settings an advantage estimator needs, checked before anything starts."""

from collections.abc import Mapping, Sequence
from typing import Any

from verl_agent.config.parts import Part
from verl_agent.errors import ConfigError, did_you_mean

ESTIMATORS = (
    "gae",
    "gigpo",
    "gpg",
    "grpo",
    "grpo_passk",
    "grpo_vectorized",
    "opo",
    "reinforce_plus_plus",
    "reinforce_plus_plus_baseline",
    "rloo",
    "rloo_vectorized",
    "turn_returns",
)
"""Those of verl 0.9.1 (trainer/ppo/core_algos.py) that ask for nothing but what an episode gives, and ours."""
GROUPED = tuple(name for name in ESTIMATORS if name not in ("gae", "reinforce_plus_plus", "turn_returns"))
"""Estimators that compare episodes of one task."""
TURN_ESTIMATORS = ("turn_returns", "gigpo")
"""Estimators of ours, which take rewards from turns."""
BY_TOKEN = ("gae", "reinforce_plus_plus")
"""Estimators to which it matters on which token a reward lies."""
UNIFORM_IS_ZERO = ("grpo", "grpo_vectorized", "rloo", "rloo_vectorized")
"""Estimators that give a group of equal rewards no advantage, whatever the others."""


def check_algorithm(config: Mapping[str, Any], parts: Sequence[Part]) -> None:
    """The estimator exists, and has what it needs.

    Args:
        config: the whole config in plain values, resolved.
        parts: the environments of the run.

    Raises:
        ConfigError: it lacks something, named by key with the remedy.
    """
    algorithm, rollout, sampler = (
        config["algorithm"],
        config["actor_rollout_ref"]["rollout"],
        config["trainer"]["v1"]["sampler"]["sampler_kwargs"],
    )
    name, samples = algorithm["adv_estimator"], int(rollout["n"])
    if name not in ESTIMATORS:
        raise ConfigError(f"algorithm.adv_estimator={name!r} is not one for episodes. {did_you_mean(name, ESTIMATORS)}")
    if name == "gae" and config["critic"]["enable"] is False:
        raise ConfigError(
            "algorithm.adv_estimator='gae' needs a critic, and critic.enable=false leaves it out. Set critic.enable "
            "to null, or choose an estimator without a critic, such as grpo."
        )
    if name in GROUPED and samples < 2:
        raise ConfigError(
            f"algorithm.adv_estimator={name!r} compares the episodes of a task, and actor_rollout_ref.rollout.n="
            f"{samples} plays one. Set it to 2 or more, or choose gae, reinforce_plus_plus or turn_returns."
        )
    if name in TURN_ESTIMATORS and algorithm["use_kl_in_reward"]:
        raise ConfigError(
            f"algorithm.adv_estimator={name!r} takes its rewards from turns, so algorithm.use_kl_in_reward would not "
            "reach it. Set actor_rollout_ref.actor.use_kl_loss instead."
        )
    for key, wanted in (
        ("trainer.v1.sampler.sampler_kwargs.skip_uniform", sampler["skip_uniform"]),
        ("algorithm.filter_groups.enable", algorithm["filter_groups"]["enable"]),
    ):
        if wanted and name not in UNIFORM_IS_ZERO:
            raise ConfigError(
                f"{key} leaves out groups that algorithm.adv_estimator={name!r} learns from. Set it to false, or "
                f"choose one of {', '.join(UNIFORM_IS_ZERO)}."
            )
    if algorithm["filter_groups"]["enable"] and any(part.settings.horizon.adaptive for part in parts):
        raise ConfigError(
            "horizon.adaptive grows by the success of all groups, and algorithm.filter_groups.enable hides those that "
            "all succeed or all fail. Choose one of the two; skip_uniform goes with both."
        )
