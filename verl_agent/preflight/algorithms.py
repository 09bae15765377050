"""Which settings an advantage estimator needs, checked before anything starts."""

from collections.abc import Mapping, Sequence
from typing import Any

from verl_agent.config.mixture import MixtureEnv
from verl_agent.errors import ConfigError, did_you_mean

ESTIMATORS = ("gae", "gigpo", "grpo", "reinforce_plus_plus", "rloo", "turn_returns")
"""Those of verl 0.9.1 (trainer/ppo/core_algos.py) that are tested on episodes of several turns, and ours."""
GROUPED = ("gigpo", "grpo", "rloo")
"""Estimators that compare episodes of one task."""
TURN_ESTIMATORS = ("turn_returns", "gigpo")
"""Estimators of ours, which take rewards from turns."""
BY_TOKEN = ("gae", "reinforce_plus_plus")
"""Estimators to which it matters on which token a reward lies."""
UNIFORM_IS_ZERO = ("grpo", "rloo")
"""Estimators that give a group of equal rewards no advantage, whatever the others."""

CREDIT_READERS = (
    ("turn_gamma", 1.0, TURN_ESTIMATORS),
    ("step_weight", 1.0, ("gigpo",)),
    ("anchor", "observation", ("gigpo",)),
    ("place", "outcome", (*BY_TOKEN, *TURN_ESTIMATORS)),
)
"""Settings of `credit`, the value that changes nothing, and the estimators to which another one matters."""
VERL_CRITIC = "~/models/deepseek-llm-7b-chat"
"""verl's default of critic.model.path (trainer/config/critic/critic.yaml)."""

FILTER_METRICS = ("reward", "success")
"""What groups may be told apart by (`algorithm.filter_groups.metric`)."""


def check_algorithm(config: Mapping[str, Any], parts: Sequence[MixtureEnv]) -> None:
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
    model, critic = config["actor_rollout_ref"]["model"]["path"], config["critic"]["model"]["path"]
    if name == "gae" and critic == VERL_CRITIC and model != VERL_CRITIC:
        raise ConfigError(
            "algorithm.adv_estimator='gae' needs a critic, and critic.model.path is verl's example. Add "
            "+overlay/algorithm=ppo, or build on recipe ppo; or set critic.model.path to the model that the critic "
            f"begins as, such as {model}."
        )
    if name in GROUPED and samples < 2:
        raise ConfigError(
            f"algorithm.adv_estimator={name!r} compares the episodes of a task, and actor_rollout_ref.rollout.n="
            f"{samples} plays one. Set it to 2 or more, or choose gae, reinforce_plus_plus or turn_returns."
        )
    if name in GROUPED and int(sampler["min_group_size"]) < 2:
        raise ConfigError(
            f"algorithm.adv_estimator={name!r} compares the episodes of a task, and trainer.v1.sampler.sampler_kwargs."
            f"min_group_size={sampler['min_group_size']} lets a lone one pass, to be compared with nothing. Set it to "
            "2 or more."
        )
    for key, neutral, readers in CREDIT_READERS:
        value = getattr(parts[0].settings.credit, key)
        if value != neutral and name not in readers:
            raise ConfigError(
                f"credit.{key}={value} is not read by algorithm.adv_estimator={name!r}. Leave it at {neutral}, or "
                f"choose {' or '.join(readers)}."
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
    metric = algorithm["filter_groups"]["metric"]
    if algorithm["filter_groups"]["enable"] and metric not in FILTER_METRICS:
        raise ConfigError(
            f"algorithm.filter_groups.metric={metric!r} is not measured. {did_you_mean(str(metric), FILTER_METRICS)}"
        )
    if algorithm["filter_groups"]["enable"] and any(part.settings.horizon.adaptive for part in parts):
        raise ConfigError(
            "horizon.adaptive grows by the success of all groups, and algorithm.filter_groups.enable hides those that "
            "all succeed or all fail. Choose one of the two; skip_uniform goes with both."
        )


def has_critic(config: Any) -> bool:
    """Whether verl will train a critic (trainer/ppo/utils.py, `need_critic`)."""
    return bool(config.critic.enable or (config.critic.enable is None and config.algorithm.adv_estimator == "gae"))
