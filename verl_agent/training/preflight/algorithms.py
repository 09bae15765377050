"""Check that the settings suit the advantage estimator."""

from collections.abc import Mapping, Sequence
from typing import Any

from verl_agent.config.algorithms import (
    CREDIT_READERS,
    CRITICS,
    ESTIMATORS,
    GROUPED,
    TURN_CRITICS,
    TURN_ESTIMATORS,
    UNIFORM_IS_ZERO,
)
from verl_agent.config.settings import RunEnv
from verl_agent.errors import ConfigError, did_you_mean

VERL_CRITIC = "~/models/deepseek-llm-7b-chat"
"""verl's default of critic.model.path (trainer/config/critic/critic.yaml)."""

FILTER_METRICS = ("reward", "success")
"""Metrics by which groups can be filtered (`algorithm.filter_groups.metric`)."""


def check_algorithm(config: Mapping[str, Any], envs: Sequence[RunEnv]) -> None:
    """Check that the estimator exists and that the settings suit it.

    Args:
        config: whole config in plain values, resolved.
        envs: environments of the run.

    Raises:
        ConfigError: the estimator is unknown, or a setting does not suit it.
    """
    algorithm, rollout, sampler = (
        config["algorithm"],
        config["actor_rollout_ref"]["rollout"],
        config["trainer"]["v1"]["sampler"]["sampler_kwargs"],
    )
    name, samples = algorithm["adv_estimator"], int(rollout["n"])
    if name not in ESTIMATORS:
        raise ConfigError(
            f"algorithm.adv_estimator={name!r} is unknown or does not support several turns. "
            f"{did_you_mean(name, ESTIMATORS)}"
        )
    _check_critic(config, name)
    for run_env in envs:
        _check_truncated(run_env, name, algorithm["gamma"])
    if name in GROUPED and samples < 2:
        raise ConfigError(
            f"algorithm.adv_estimator={name!r} compares the episodes of a task, and actor_rollout_ref.rollout.n="
            f"{samples} plays only one. Set it to 2 or more, or choose gae, reinforce_plus_plus or turn_returns."
        )
    if name in GROUPED and int(sampler["min_group_size"]) < 2:
        raise ConfigError(
            f"algorithm.adv_estimator={name!r} compares the episodes of a task, and trainer.v1.sampler.sampler_kwargs."
            f"min_group_size={sampler['min_group_size']} allows groups of one episode. Set it to 2 or more."
        )
    _check_group_sizes(sampler, samples, int(rollout["val_kwargs"]["n"]))
    for key, neutral, readers in CREDIT_READERS:
        value = getattr(envs[0].credit, key)
        if value != neutral and name not in readers:
            raise ConfigError(
                f"credit.{key}={value} is not read by algorithm.adv_estimator={name!r}. Leave it at {neutral}, or "
                f"choose {' or '.join(readers)}."
            )
    if name in TURN_ESTIMATORS and algorithm["use_kl_in_reward"]:
        raise ConfigError(
            f"algorithm.adv_estimator={name!r} uses the rewards of turns, so algorithm.use_kl_in_reward would have "
            "no effect. Set actor_rollout_ref.actor.use_kl_loss instead."
        )
    for key, enabled in (
        ("trainer.v1.sampler.sampler_kwargs.skip_uniform", sampler["skip_uniform"]),
        ("algorithm.filter_groups.enable", algorithm["filter_groups"]["enable"]),
    ):
        if enabled and name not in UNIFORM_IS_ZERO:
            raise ConfigError(
                f"{key} drops groups that algorithm.adv_estimator={name!r} uses. Set it to false, or "
                f"choose one of {', '.join(UNIFORM_IS_ZERO)}."
            )
    metric = algorithm["filter_groups"]["metric"]
    if algorithm["filter_groups"]["enable"] and metric not in FILTER_METRICS:
        raise ConfigError(
            f"algorithm.filter_groups.metric={metric!r} is not allowed. {did_you_mean(str(metric), FILTER_METRICS)}"
        )
    if algorithm["filter_groups"]["enable"] and any(run_env.horizon.adaptive for run_env in envs):
        raise ConfigError(
            "horizon.adaptive needs the success rate of all groups, and algorithm.filter_groups.enable drops those "
            "that all succeed or all fail. Choose one of the two. skip_uniform works with both."
        )


def _check_group_sizes(sampler: Mapping[str, Any], samples: int, val_samples: int) -> None:
    """Check that the sampler waits for as many episodes of a task as are played."""
    prefix, rollout = "trainer.v1.sampler.sampler_kwargs", "actor_rollout_ref.rollout"
    for key, source, played in (("group_size", "n", samples), ("val_group_size", "val_kwargs.n", val_samples)):
        if sampler[key] != played:
            raise ConfigError(
                f"{prefix}.{key}={sampler[key]!r} is not {rollout}.{source}={played}, the number of episodes that are "
                f"played for a task. Leave it out, and set {rollout}.{source}."
            )
    least = sampler["min_group_size"]
    if not isinstance(least, int) or not 1 <= least <= max(samples, 2):  # 2 is the default, also for groups of one
        raise ConfigError(
            f"{prefix}.min_group_size={least!r} is not allowed. Allowed: a whole number from 1 to {rollout}.n="
            f"{samples}."
        )


def _check_critic(config: Mapping[str, Any], name: str) -> None:
    """Check that there is a critic if the estimator uses one, and only then.

    Raises:
        ConfigError: the critic is missing, not chosen or not used.
    """
    enable = config["critic"]["enable"]
    if name not in CRITICS:
        if enable:
            raise ConfigError(
                f"critic.enable=true trains a critic that algorithm.adv_estimator={name!r} does not use. Set "
                f"critic.enable to null, or choose {' or '.join(CRITICS)}."
            )
        return
    if enable is False or (enable is None and name in TURN_CRITICS):  # verl's own choice knows `gae` only
        value = "null" if enable is None else "false"
        raise ConfigError(
            f"algorithm.adv_estimator={name!r} needs a critic, and critic.enable={value} leaves it out. Set it to "
            "true, or choose an estimator without a critic, such as grpo."
        )
    model, critic = config["actor_rollout_ref"]["model"]["path"], config["critic"]["model"]["path"]
    if critic == VERL_CRITIC and model != VERL_CRITIC:
        overlay = "ppo" if name == "gae" else "turn_ppo"
        raise ConfigError(
            f"algorithm.adv_estimator={name!r} needs a critic, and critic.model.path is verl's example. Add "
            f"+overlay/algorithm={overlay}, or set critic.model.path to the initial model of "
            f"the critic, such as {model}."
        )


def _check_truncated(run_env: RunEnv, name: str, gamma: float) -> None:
    """Check that truncated episodes can be bootstrapped if they are.

    Args:
        run_env: environment to check.
        name: `algorithm.adv_estimator`.
        gamma: `algorithm.gamma`.

    Raises:
        ConfigError: there is no critic, delay has no cost, or the model is told the turns left.
    """
    if run_env.credit.truncated != "bootstrap":
        return
    if name not in CRITICS:
        raise ConfigError(
            f"credit.truncated='bootstrap' adds the critic's value of the last state, and algorithm.adv_estimator="
            f"{name!r} has no critic. Set it to drop or as_is, or choose {' or '.join(CRITICS)}."
        )
    credit = run_env.credit
    key, discount = ("credit.turn_gamma", credit.turn_gamma) if name in TURN_CRITICS else ("algorithm.gamma", gamma)
    if discount == 1 and credit.step_cost == 0:
        raise ConfigError(
            f"credit.truncated='bootstrap' with {key}={discount} and credit.step_cost=0 gives an episode that is never "
            f"solved the value of a solved one, because the limit no longer ends it. Set {key} below 1, such as 0.99, "
            "or credit.step_cost above 0."
        )
    if run_env.agent.options.get("turns_left"):
        raise ConfigError(
            "credit.truncated='bootstrap' and agent.options.turns_left=true exclude each other: a model that is told "
            "the turns left takes the limit for a part of the task, and no value of a state with 0 turns left is "
            "learned. Set credit.truncated=as_is, or turns_left=false."
        )


def has_critic(config: Any) -> bool:
    """Return True if verl will train a critic (trainer/ppo/utils.py, `need_critic`)."""
    return bool(config.critic.enable or (config.critic.enable is None and config.algorithm.adv_estimator == "gae"))
