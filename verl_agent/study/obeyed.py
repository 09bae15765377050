"""Settings of a recipe that the small runner obeys, and those that it would ignore."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from verl_agent.config.checks import changed_keys
from verl_agent.config.composing import compose_training
from verl_agent.config.keys import leaves
from verl_agent.errors import ConfigError
from verl_agent.study.settings import OF_ARMS, Study

OBEYED = (
    *("env.name", "env.train_tasks", "env.eval_tasks", "env.options", "env.on_action_error", "env.retries"),
    *("agent", "horizon"),
    *("episode.max_tokens", "episode.max_tokens_per_turn", "episode.on_truncated_turn", "credit"),
    *("data.train_batch_size", "data.max_prompt_length", "data.max_response_length", "actor_rollout_ref.rollout.n"),
    *(f"algorithm.{name}" for name in ("adv_estimator", "gamma", "lam", "norm_adv_by_std_in_grpo")),
    *(f"actor_rollout_ref.actor.{name}" for name in ("ppo_mini_batch_size", "ppo_epochs", "policy_loss", "optim.lr")),
    *(f"actor_rollout_ref.actor.{name}" for name in ("loss_agg_mode", "loss_scale_factor", "grad_clip")),
    *(f"actor_rollout_ref.actor.{name}" for name in ("clip_ratio_low", "clip_ratio_high", "clip_ratio_c")),
    *(f"actor_rollout_ref.actor.{name}" for name in ("use_kl_loss", "kl_loss_coef", "kl_loss_type", "entropy_coeff")),
    *("critic.optim.lr", "critic.cliprange_value", *(f"tiny.{name}" for name in OF_ARMS)),
)
"""Keys that the small runner obeys, with those below them."""
OF_TRAINING = (
    *("actor_rollout_ref.actor", "critic", "algorithm", "data", "trainer.v1.sampler"),
    *(f"actor_rollout_ref.rollout.{name}" for name in ("temperature", "top_k", "top_p")),
)
"""Keys of a recipe that matter to training, with those below them; but for those of engines and devices."""
TECHNICAL = ("_per_gpu", "fsdp", "megatron", "strategy", "data.val_")
"""Parts of the names of keys of engines and devices."""


def check_small_runner(study: Study, recipe: Path, changes: Mapping[tuple[str, str], Mapping[str, Any]]) -> list[str]:
    """Check that the small runner obeys all that arms, strata and search change; return what it ignores of the recipe.

    Raises:
        ConfigError: it ignores a change.
    """
    first, bare = next(iter(study.arms)), compose_training(recipe, [], resolve=False)
    for (_, arm), keys in changes.items():
        check_obeyed({key: setter("arm", study.arms, (arm, first), key) for key in keys})
    for stratum, shared in study.strata.items():
        keys = differing(bare, compose_training(recipe, shared, resolve=False)) if shared else {}
        check_obeyed({key: setter("stratum", study.strata, [stratum], key) for key in keys})
    check_obeyed({study.search.key: f"search sets {study.search.key}"} if study.search else {})
    return ignored_keys(bare)


def ignored_keys(config: Mapping[str, Any]) -> list[str]:
    """Return the keys of a recipe, with their values, that matter to training, and that the small runner ignores."""
    return [
        f"{key}={value}"
        for key, value in changed_keys(config).items()
        if any(is_within(key, one) for one in OF_TRAINING)
        and not any(is_within(key, one) for one in OBEYED)
        and not any(part in key for part in TECHNICAL)
    ]


def check_obeyed(keys: Mapping[str, str]) -> None:
    """Check that the small runner obeys keys, given with a sentence on what sets them.

    Raises:
        ConfigError: it ignores one.
    """
    for key, said in keys.items():
        if not any(is_within(key, one) for one in OBEYED):
            raise ConfigError(
                f"{said}, which the small runner ignores, so the study could not show its effect. Leave it out, or set "
                f"runner: train. The small runner obeys {', '.join(OBEYED)}."
            )


def setter(kind: str, overrides: Mapping[str, Sequence[str]], names: Sequence[str], key: str) -> str:
    """Return a sentence on which of some arms or strata sets a key, with the override."""
    for name in names:
        for override in overrides[name]:
            if is_within(key, named(override)):
                return f"{kind} {name} sets {override}"
    return f"{kind} {names[0]} changes {key}"


def named(override: str) -> str:
    """Return the key of an override."""
    return override.lstrip("+~").partition("=")[0]


def is_within(key: str, section_or_key: str) -> bool:
    """Return True if a dotted key is another one, or lies below it."""
    return key == section_or_key or key.startswith(f"{section_or_key}.")


def differing(first: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Return the dotted keys in which two configs differ, with the values of the second; None for a key it lacks.

    A key that refers to another one is the same in both.
    """
    before, after = dict(leaves(first)), dict(leaves(other))
    return {key: after.get(key) for key in {**before, **after} if before.get(key) != after.get(key)}
