"""Check that the settings of the policy update take effect: loss, clipping, discount and off-policy correction."""

from collections.abc import Mapping
from typing import Any

from verl_agent.config.algorithms import CRITICS, TURN_ESTIMATORS
from verl_agent.errors import ConfigError, did_you_mean

LOSSES = ("vanilla", "gspo", "turn_ratio")
"""Policy losses of verl 0.9.1 (trainer/ppo/core_algos.py) that are tested on multi-turn episodes, and that of this
package."""
DISCOUNTS = (("gamma", ("gae", "reinforce_plus_plus")), ("lam", ("gae",)))
"""Discounts per token of section `algorithm`, and the estimators that read them."""
WEIGHTS = ("token", "sequence")
"""Levels of importance weights (`rollout_is`) in verl 0.9.1, trainer/ppo/rollout_corr_helper.py."""
REJECTIONS = (
    *(f"token_k{k}" for k in (1, 2, 3)),
    *(f"seq_{over}_k{k}" for over in ("sum", "mean") for k in (1, 2, 3)),
    "seq_max_k2",
    "seq_max_k3",
)
"""Criteria of rejection (`rollout_rs`) there."""
LOSS_MEANS = ("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-sum-norm", "seq-mean-token-mean")
"""Aggregations of a loss over tokens and rows, `agg_loss` there."""
KL_ESTIMATORS = tuple(
    name + gradient for name in ("kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3") for gradient in ("", "+")
)
"""Estimators of the KL loss there (`kl_penalty`) that need only the log-probs of sampled tokens; `+` takes the gradient
of k2."""
CORRECTION = "algorithm.rollout_correction"
ACTOR = "actor_rollout_ref.actor"


def check_update(config: Mapping[str, Any]) -> None:
    """Check that no setting of the update is ignored.

    Args:
        config: whole config in plain values, resolved.

    Raises:
        ConfigError: a setting has no effect together with another one, or is not allowed.
    """
    _check_choices(config)
    _check_loss(config)
    name = config["algorithm"]["adv_estimator"]
    for key, readers in DISCOUNTS:
        value = config["algorithm"][key]
        if value != 1.0 and name not in readers:
            raise ConfigError(
                f"algorithm.{key}={value} is not read by algorithm.adv_estimator={name!r}. Leave it at 1.0, or choose "
                f"{' or '.join(readers)}. credit.turn_gamma is the discount per turn of "
                f"{', '.join(TURN_ESTIMATORS)}."
            )
    if config["actor_rollout_ref"]["rollout"]["full_determinism"]:
        raise ConfigError(
            "actor_rollout_ref.rollout.full_determinism=True gives all samples of a task the same seed, so that they "
            "are equal and nothing is learnt. Leave it at false, and set data.seed to choose the order of tasks and "
            "the random numbers."
        )
    if config["algorithm"]["use_pf_ppo"]:
        raise ConfigError(
            "algorithm.use_pf_ppo=True is not supported: verl's trainer would draw rows anew and write their "
            "advantages to other rows. Leave it at false."
        )
    if config["trainer"]["critic_warmup"] and name not in CRITICS:
        raise ConfigError(
            f"trainer.critic_warmup={config['trainer']['critic_warmup']} leaves the policy unchanged while a critic "
            f"learns, and algorithm.adv_estimator={name!r} has no critic. Set it to 0, or choose "
            f"{' or '.join(CRITICS)}."
        )
    if config["actor_rollout_ref"]["actor"]["shuffle"]:
        raise ConfigError(
            f"{ACTOR}.shuffle=True would split the groups that each mini-batch holds whole, in another order on each "
            "rank. Leave it at false: data.seed shuffles the groups of every step."
        )
    _check_correction(config)


def _check_choices(config: Mapping[str, Any]) -> None:
    """Check values that verl reads only in a later phase, where they fail or prevent learning."""
    actor, temperature = config["actor_rollout_ref"]["actor"], config["actor_rollout_ref"]["rollout"]["temperature"]
    for key, value, allowed in (
        (f"{ACTOR}.loss_agg_mode", actor["loss_agg_mode"], LOSS_MEANS),
        ("critic.loss_agg_mode", config["critic"]["loss_agg_mode"], LOSS_MEANS),
        (f"{ACTOR}.kl_loss_type", actor["kl_loss_type"], KL_ESTIMATORS),
    ):
        if value not in allowed:
            raise ConfigError(f"{key}={value!r} is not allowed. {did_you_mean(str(value), allowed)}")
    if not temperature > 0:
        raise ConfigError(
            f"actor_rollout_ref.rollout.temperature={temperature} is not allowed in training: gradients would be 0. "
            "Allowed: a number > 0. Validation has actor_rollout_ref.rollout.val_kwargs.temperature."
        )


def _check_loss(config: Mapping[str, Any]) -> None:
    """Check the policy loss and its clip range."""
    actor = config["actor_rollout_ref"]["actor"]
    mode = actor["policy_loss"]["loss_mode"]
    if mode not in LOSSES:
        raise ConfigError(
            f"{ACTOR}.policy_loss.loss_mode={mode!r} is unknown or does not support several turns. "
            f"{did_you_mean(str(mode), LOSSES)}"
        )
    for bound in ("low", "high"):
        if actor[f"clip_ratio_{bound}"] is None:
            raise ConfigError(f"{ACTOR}.clip_ratio_{bound}=None is not allowed. Allowed: a number > 0.")


def _check_correction(config: Mapping[str, Any]) -> None:
    """Check the section `algorithm.rollout_correction`."""
    correction, rollout = config["algorithm"]["rollout_correction"], config["actor_rollout_ref"]["rollout"]
    changed = {
        key: correction[key]
        for key, neutral in (
            ("rollout_is", None),
            ("rollout_rs", None),
            ("rollout_is_batch_normalize", False),
            ("loss_type", "ppo_clip"),
        )
        if correction[key] != neutral
    }
    for key, value in changed.items():
        if key == "loss_type":
            raise ConfigError(
                f"{CORRECTION}.loss_type={value!r} has no effect, because verl's trainer does not pass it on. Leave it "
                f"at ppo_clip. {CORRECTION}.rollout_is weights the loss."
            )
        if correction["bypass_mode"]:
            raise ConfigError(
                f"{CORRECTION}.{key}={value!r} has no effect with {CORRECTION}.bypass_mode=true, in which PPO's ratio "
                f"starts from the engine's log-probs. Set bypass_mode to false, or {key} to "
                f"{'false' if value is True else 'null'}; +overlay/correction=none sets the latter."
            )
    if not rollout["calculate_log_probs"] and (changed or correction["bypass_mode"]):
        key = next(iter(changed), "bypass_mode")
        raise ConfigError(
            f"{CORRECTION}.{key}={correction[key]!r} needs the engine's log-probs, and "
            "actor_rollout_ref.rollout.calculate_log_probs=false leaves them out. Set it to true."
        )
    _check_weights(correction)
    _check_rejection(correction, config["actor_rollout_ref"]["actor"]["policy_loss"]["loss_mode"])


def _check_weights(correction: Mapping[str, Any]) -> None:
    weights, limit = correction["rollout_is"], correction["rollout_is_threshold"]
    if weights not in (None, *WEIGHTS):
        raise ConfigError(
            f"{CORRECTION}.rollout_is={weights!r} is not allowed. Allowed: {', '.join(WEIGHTS)} or null. "
            f"{did_you_mean(str(weights), WEIGHTS)}"
        )
    if weights is None:
        for key, neutral in (("rollout_is_threshold", 2.0), ("rollout_is_batch_normalize", False)):
            if correction[key] != neutral:
                raise ConfigError(
                    f"{CORRECTION}.{key}={correction[key]!r} has no effect without {CORRECTION}.rollout_is. Set it to "
                    "token or sequence."
                )
    elif not _is_limit(limit, pair=False):
        raise ConfigError(
            f"{CORRECTION}.rollout_is_threshold={limit!r} is not allowed. Allowed: a number > 0, above which weights "
            "are cut. verl divides by zero where all weights of a batch lie outside of a range such as '0.5_5.0'."
        )


def _check_rejection(correction: Mapping[str, Any], loss: str) -> None:
    rejection, limits = correction["rollout_rs"], correction["rollout_rs_threshold"]
    if rejection is None:
        if limits is not None:
            raise ConfigError(
                f"{CORRECTION}.rollout_rs_threshold={limits!r} has no effect without {CORRECTION}.rollout_rs. Set it "
                "to token_k1, for example."
            )
        return
    options = [option.strip() for option in str(rejection).split(",")]
    for option in options:
        if option not in REJECTIONS:
            raise ConfigError(
                f"{CORRECTION}.rollout_rs={rejection!r} is not allowed. {did_you_mean(option, REJECTIONS)}"
            )
    parts = [part.strip() for part in str(limits).split(",")]
    each = parts * len(options) if len(parts) == 1 else parts
    if len(each) != len(options) or not all(
        _is_limit(part, pair=option.endswith("k1")) for part, option in zip(each, options, strict=True)
    ):
        raise ConfigError(
            f"{CORRECTION}.rollout_rs_threshold={limits!r} is not allowed. Allowed: one bound for each entry of "
            f"rollout_rs={rejection!r}, separated by commas: a number > 0, and for k1 also a text such as '0.5_2.0', "
            "the bounds of p_engine / p_trainer."
        )
    if loss == "turn_ratio" and any(option.startswith("token") for option in options):
        raise ConfigError(
            f"{CORRECTION}.rollout_rs={rejection!r} removes tokens from the middle of a turn, and {ACTOR}.policy_loss."
            "loss_mode='turn_ratio' would take the rest for two turns. Reject whole rows (seq_mean_k1), or set the "
            "loss to vanilla or gspo."
        )


def _is_limit(value: Any, pair: bool) -> bool:
    """Return True for a number above 0, and with `pair` also for a text `lower_upper` of two such numbers in order."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return False
    parts = str(value).split("_")
    try:
        numbers = [float(part) for part in parts]
    except ValueError:
        return False
    return len(numbers) <= (2 if pair else 1) and all(number > 0 for number in numbers) and numbers == sorted(numbers)
