"""Conditions on the settings that reach the sampled tokens, the loss and the optimizer.

tests/verl/training/test_traced_settings.py compares each key with a plain computation, for values that are allowed.
"""

from collections.abc import Iterator, Mapping
from types import NoneType
from typing import Annotated, Any, Literal

from pydantic import Field

from verl_agent.config.algorithms import CRITICS, ESTIMATOR, KNOWN_LOSSES, LOSS
from verl_agent.config.catalogue import SET
from verl_agent.config.keys import leaves
from verl_agent.training.preflight.conditions import Condition, Get, Where

LOSS_MEANS = Literal["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-sum-norm", "seq-mean-token-mean"]
"""Aggregations of a loss over tokens and rows in verl 0.9.1 (trainer/ppo/core_algos.py, `agg_loss`)."""
SCALED = "seq-mean-token-sum-norm"
"""Aggregation that divides by `loss_scale_factor`."""
KL_NAMES = ("kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3")
"""Estimators of the KL loss there (`kl_penalty`) that need only the log-probs of sampled tokens; with `+` they take the
gradient of k2."""
REJECTIONS = (
    *(f"token_k{k}" for k in (1, 2, 3)),
    *(f"seq_{over}_k{k}" for over in ("sum", "mean") for k in (1, 2, 3)),
    "seq_max_k2",
    "seq_max_k3",
)
"""Criteria of rejection (`rollout_rs`) in verl 0.9.1, trainer/ppo/rollout_corr_helper.py."""
COLDEST = 0.01
"""Lowest temperature at which vLLM samples (`vllm.sampling_params._MAX_TEMP`); below, it samples at this one."""
PROCESSED, RAW = "processed_logprobs", "raw_logprobs"
"""Modes in which vLLM's log-probs are those of the sampled distribution, and those before the temperature."""
ENGINE_KWARGS = {
    "vllm": ("logprobs_mode", "override_generation_config", "logits_processors", "hf_overrides"),
    "sglang": ("preferred_sampling_params", "enable_custom_logit_processor", "json_model_override_args"),
}
"""Arguments of the engines that change the sampled distribution or its log-probs behind the settings of verl."""
OWN_ARGUMENTS = ("lr", "weight_decay", "betas")
"""Arguments of an optimizer that are settings of their own."""

ROLLOUT, ACTOR, CORRECTION = "actor_rollout_ref.rollout", "actor_rollout_ref.actor", "algorithm.rollout_correction"
CRITIC = "critic"
IN_REWARD: Mapping[str, Any] = {"algorithm.use_kl_in_reward": [True]}
ADAPTIVE: Mapping[str, Any] = {**IN_REWARD, "algorithm.kl_ctrl.type": ["adaptive"]}

Positive = Annotated[int, Field(ge=1)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
NotNegative, AboveZero = Annotated[float, Field(ge=0)], Annotated[float, Field(gt=0)]
FiniteCost = Annotated[float, Field(ge=0, allow_inf_nan=False)]
FiniteFactor = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share, One = Annotated[float, Field(ge=0, le=1)], Annotated[float, Field(ge=1, le=1)]
On, Off, Weights = Literal[True], Literal[False], Literal["token", "sequence"]


def is_limit(value: Any, pair: bool = False) -> bool:
    """Return True for a number above 0, and with `pair` also for a text `lower_upper` of two such numbers in order."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return False
    try:
        numbers = [float(part) for part in str(value).split("_")]
    except ValueError:
        return False
    return len(numbers) <= (2 if pair else 1) and all(number > 0 for number in numbers) and numbers == sorted(numbers)


def _criteria(value: Any) -> list[str]:
    return [] if value is None else [option.strip() for option in str(value).split(",")]


def _bounds_fit(value: Any, get: Get) -> bool:
    options, bounds = _criteria(get(f"{CORRECTION}.rollout_rs")), _criteria(value)
    each = bounds * len(options) if len(bounds) == 1 else bounds
    return len(each) == len(options) and all(
        is_limit(bound, pair=option.endswith("k1")) for bound, option in zip(each, options, strict=True)
    )


def _sampled_log_probs(mode: Any, get: Get) -> bool:
    """Allow raw log-probs, and null, which is vLLM's word for them, at temperature 1, where they are the same."""
    return mode == PROCESSED or (mode in (RAW, None) and get(f"{ROLLOUT}.temperature") == 1)


OF_UPDATE = ("", "attn_implementation", "use_cache", "router_aux_loss_coef", "output_router_logits", "pad_token_id")
"""Names in `override_config` that change no log-prob."""


def _of_update_alone(override: Any, get: Get) -> bool:
    """Allow overrides that change how an update computes the model, and not which model an engine plays."""
    names = [key.rpartition(".")[2] for key, _ in leaves(override or {})]
    return all(name in OF_UPDATE or "drop" in name or "jitter" in name for name in names)


def _betas(value: Any, get: Get) -> bool:
    return len(value) == 2 and all(isinstance(beta, int | float) and 0 <= beta < 1 for beta in value)


def optimizer_conditions(optim: str) -> Iterator[Condition]:
    """Yield the conditions on an optimizer of FSDP; a key that Megatron alone has is not checked here.

    Args:
        optim: its section, such as `critic.optim`.
    """
    cosine = {f"{optim}.lr_scheduler_type": ["cosine"]}
    yield Condition(f"{optim}.lr", FiniteCost)
    yield Condition(f"{optim}.clip_grad", AboveZero,
                    "PyTorch multiplies gradients by clip_grad / norm: below 0 they would point the other way. Set it "
                    "to .inf for no limit.")  # fmt: skip
    yield Condition(f"{optim}.weight_decay", FiniteCost)
    yield Condition(f"{optim}.betas", Where("two numbers from 0 to below 1", _betas))
    yield Condition(f"{optim}.lr_warmup_steps", Annotated[int, Field(ge=-1)],
                    f"-1 leaves it to {optim}.lr_warmup_steps_ratio.")  # fmt: skip
    yield Condition(f"{optim}.lr_warmup_steps_ratio", Share)
    yield Condition(f"{optim}.lr_scheduler_type", Literal["constant", "cosine"] | NoneType)
    yield Condition(f"{optim}.min_lr_ratio", Share | NoneType, when=cosine)
    yield Condition(f"{optim}.num_cycles", FiniteCost, when=cosine)
    yield Condition(
        f"{optim}.override_optimizer_config",
        Where(
            f"null, or a section without maximize, {', '.join(OWN_ARGUMENTS)}",
            lambda value, get: not value or not {"maximize", *OWN_ARGUMENTS} & set(value),
        ),
        f"maximize would raise the loss. The others are settings of {optim}.",
    )


# fmt: off
UPDATE_CONDITIONS: tuple[Condition, ...] = (
    # Sampling: tokens of the whole distribution of the trained model, with their log-probs in it
    Condition(f"{ROLLOUT}.temperature", Annotated[float, Field(ge=COLDEST, allow_inf_nan=False)],
              f"vLLM samples at {COLDEST} where it is lower, and the loss would divide by another number. Validation "
              f"has {ROLLOUT}.val_kwargs.temperature."),
    *(Condition(f"{ROLLOUT}.{key}", allowed,
                "The loss would take the probabilities of the whole distribution for those of the cut one: no "
                "weight corrects it for tokens that are never sampled (docs/explanations/off-policy.md). "
                f"Validation has {ROLLOUT}.val_kwargs.{key}.")
      for key, allowed in (("top_p", One), ("top_k", Literal[-1]))),
    Condition(f"{ROLLOUT}.logprobs_mode",
              Where(f"{PROCESSED}, or {RAW} with temperature=1; {ROLLOUT}.temperature={{{ROLLOUT}.temperature}}",
                    _sampled_log_probs),
              "The engine's log-probs must be those of the distribution that it samples from.",
              {f"{ROLLOUT}.name": ["vllm"]}),
    Condition(f"{ROLLOUT}.ignore_eos", Off, "No reply would end with the model's end of turn."),
    *(Condition(f"{ROLLOUT}.engine_kwargs.{engine}.{name}", NoneType,
                "It changes the sampled tokens or their log-probs, and the loss does not know of it. Leave it out.",
                {f"{ROLLOUT}.name": [engine]})
      for engine, names in ENGINE_KWARGS.items() for name in names),
    *(Condition(f"actor_rollout_ref.model.{key}", allowed,
                "The engine reads config.json of the model's folder and would play another model than the update "
                "trains. Write the value there, and set actor_rollout_ref.model.path to that folder.")
      for key, allowed in (
          ("override_config", Where(f"{', '.join(OF_UPDATE[1:])}, names with drop or jitter", _of_update_alone)),
          ("hf_config_path", NoneType))),
    Condition(f"{ROLLOUT}.full_determinism", Off,
              "It gives all samples of a task the same seed, so that they are equal and nothing is learnt. data.seed "
              "chooses the order of tasks and the random numbers."),
    # The loss
    *(Condition(f"{model}.loss_agg_mode", LOSS_MEANS) for model in (ACTOR, CRITIC)),
    *(Condition(f"{model}.loss_scale_factor", FiniteFactor,
                "Each loss is divided by it. Without it verl divides by the longest row of each micro batch, so that "
                "the result depends on how rows are put together. Set it to ${data.max_response_length}, for example.",
                {f"{model}.loss_agg_mode": [SCALED]})
      for model in (ACTOR, CRITIC)),
    Condition(LOSS, KNOWN_LOSSES, "Others of verl do not support several turns."),
    *(Condition(f"{ACTOR}.clip_ratio_{bound}", NotNegative) for bound in ("low", "high")),
    Condition(f"{ACTOR}.clip_ratio_c", Annotated[float, Field(gt=1)], when={LOSS: ["vanilla"]}),
    Condition(f"{ACTOR}.entropy_coeff", Finite),
    Condition(f"{ACTOR}.kl_loss_type", Literal[tuple(name + end for name in KL_NAMES for end in ("", "+"))]),
    Condition(f"{ACTOR}.kl_loss_coef", FiniteCost, "Below 0 the model would be drawn away from the initial one.",
              {f"{ACTOR}.use_kl_loss": [True]}),
    Condition("critic.cliprange_value", AboveZero, "Values move at most that far in an update.", {ESTIMATOR: CRITICS}),
    *(Condition(f"algorithm.{key}", Share) for key in ("gamma", "lam")),
    Condition("algorithm.kl_ctrl.kl_coef", FiniteCost, "Below 0 it would reward a distance from the initial model.",
              IN_REWARD),
    Condition("algorithm.kl_penalty", Literal[KL_NAMES], when=IN_REWARD),
    Condition("algorithm.kl_ctrl.type", Literal["fixed", "adaptive"], when=IN_REWARD),
    *(Condition(f"algorithm.kl_ctrl.{key}", FiniteFactor, when=ADAPTIVE) for key in ("target_kl", "horizon")),
    Condition("algorithm.use_pf_ppo", Off,
              "verl's trainer would draw rows anew and write their advantages to other rows."),
    # Batches and optimizers
    *(Condition(f"{model}.ppo_epochs", Positive, "With less, nothing is learnt.") for model in (ACTOR, CRITIC)),
    *(Condition(f"{model}.ppo_mini_batch_size", Positive) for model in (ACTOR, CRITIC)),
    *(Condition(f"{model}.{key}", Positive, when={f"{model}.use_dynamic_bsz": [packed], **used})
      for model, used in ((ACTOR, {}), (CRITIC, {ESTIMATOR: CRITICS}))
      for key, packed in (("ppo_micro_batch_size_per_gpu", False), ("ppo_max_token_len_per_gpu", True))),
    *(Condition(f"{section}.entropy_from_logits_chunk_size", Positive | NoneType,
                "Without tokens in a chunk verl's entropies are 0.")
      for section in (ACTOR, f"{ACTOR}.fsdp_config", f"{CRITIC}.fsdp")),
    *(Condition(key, Positive) for key in ("data.max_prompt_length", "data.max_response_length")),
    Condition(f"{ACTOR}.shuffle", Off,
              "It would split the groups of a mini-batch. data.seed shuffles the groups of every step."),
    *(condition for model in (ACTOR, CRITIC) for condition in optimizer_conditions(f"{model}.optim")),
    Condition("trainer.critic_warmup", Annotated[int, Field(ge=0)]),
    # Off-policy correction
    *(Condition(f"{CORRECTION}.{key}", NoneType,
                f"It has no effect, because PPO's ratio starts from the engine's log-probs. Set {CORRECTION}."
                "bypass_mode=false, or add +overlay/correction=none.", {f"{CORRECTION}.bypass_mode": [True]})
      for key in ("rollout_is", "rollout_rs")),
    *(Condition(f"{ROLLOUT}.calculate_log_probs", On, "The correction needs the engine's log-probs.",
                {f"{CORRECTION}.{key}": SET})
      for key in ("rollout_is", "rollout_rs", "bypass_mode")),
    Condition(f"{CORRECTION}.rollout_is", Weights | NoneType),
    Condition(f"{CORRECTION}.rollout_is_threshold",
              Where("a number > 0, above which weights are cut", lambda limit, get: is_limit(limit)),
              "verl divides by zero where all weights of a batch lie outside of a range such as '0.5_5.0'.",
              {f"{CORRECTION}.rollout_is": SET}),
    Condition(f"{CORRECTION}.rollout_rs",
              Where(f"null, or one or several of {', '.join(REJECTIONS)}",
                    lambda value, get: set(_criteria(value)) <= set(REJECTIONS))),
    Condition(f"{CORRECTION}.rollout_rs_threshold",
              Where("one bound for each criterion, separated by commas: a number > 0, and for k1 also a text such as "
                    "'0.5_2.0', the bounds of p_engine / p_trainer", _bounds_fit),
              when={f"{CORRECTION}.rollout_rs": SET}),
    Condition(f"{CORRECTION}.rollout_rs",
              Where("criteria of whole rows, such as seq_mean_k1", lambda value, get: "token" not in str(value)),
              "Others remove tokens from the middle of a turn, and the loss would take the rest for two turns. Or set "
              "the loss to vanilla or gspo.", {LOSS: ["turn_ratio"]}),
)
# fmt: on
