"""Cases of each setting that reaches model, loss or step: values to compare, values to refuse, or a reason.

tests/verl/training/test_traced_settings.py has the comparisons. A key without an entry fails it.
"""

import sys
from fnmatch import fnmatchcase
from functools import cache

from verl_agent.config.catalogue import KeyRow, rows_of
from verl_agent.config.keys import leaves, reference

NUMBERS = (0, 0.5, 1, 3, 1e6, -1, float("nan"), float("inf"), None)
"""Values of a number that are tried: each is refused, or gives the result of the plain computation."""
A, R, M = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.model"
C, ALGORITHM = "critic", "algorithm"

OPTIMIZERS = {
    "lr": NUMBERS,
    "weight_decay": NUMBERS,
    "betas": ([0.9, 0.999], [0.0, 0.0], [0.5, 0.9], [0.9, 1.0], [-0.1, 0.9], [0.9], [float("nan"), 0.9]),
    "clip_grad": NUMBERS,
    "lr_warmup_steps": (-1, 0, 2, 100, -2, None),
    "lr_warmup_steps_ratio": NUMBERS,
    "lr_scheduler_type": ("constant", "cosine", "linear"),
    "min_lr_ratio": NUMBERS,
    "num_cycles": NUMBERS,
    "zero_indexed_step": (True, False),
    "override_optimizer_config": (None, {"eps": 1e-3}, {"amsgrad": True}, {"maximize": True}, {"lr": 1.0}),
}
MEANS = ("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-sum-norm", "seq-mean-token-mean", "mean")
KL_TYPES = ("kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3")
LOSSES = {
    f"{A}.loss_agg_mode": MEANS,
    f"{A}.loss_scale_factor": NUMBERS,
    f"{A}.clip_ratio_low": NUMBERS,
    f"{A}.clip_ratio_high": NUMBERS,
    f"{A}.clip_ratio_c": NUMBERS,
    f"{A}.entropy_coeff": NUMBERS,
    f"{A}.use_kl_loss": (True, False),
    f"{A}.kl_loss_coef": NUMBERS,
    f"{A}.kl_loss_type": (*KL_TYPES, *(f"{name}+" for name in KL_TYPES), "full"),
    f"{C}.loss_agg_mode": MEANS,
    f"{C}.loss_scale_factor": NUMBERS,
    f"{C}.cliprange_value": NUMBERS,
}
COMPARED = {
    **LOSSES,
    f"{ALGORITHM}.gamma": NUMBERS,
    f"{ALGORITHM}.lam": NUMBERS,
    **{f"{model}.optim.{name}": values for model in (A, C) for name, values in OPTIMIZERS.items()},
}
"""Values of each key that are compared with a plain computation unless they are refused."""

NAN, INFINITE = float("nan"), float("inf")
REFUSED = {
    **{f"{model}.loss_scale_factor": (None, 0, -5, NAN, INFINITE) for model in (A, C)},
    **{f"{model}.optim.clip_grad": (None, 0, -1, NAN) for model in (A, C)},
    **{f"{model}.optim.lr": (None, -1, NAN, INFINITE) for model in (A, C)},
    **{f"{model}.optim.weight_decay": (None, -1, NAN, INFINITE) for model in (A, C)},
    **{f"{model}.optim.override_optimizer_config": ({"maximize": True}, {"betas": [0, 0]}) for model in (A, C)},
    f"{A}.kl_loss_coef": (-1, NAN, INFINITE, None),
    f"{A}.entropy_coeff": (NAN, INFINITE, None),
    f"{A}.clip_ratio_low": (-1, NAN, None),
    f"{A}.clip_ratio_c": (1, 0, -1, NAN, None),
    f"{C}.cliprange_value": (0, -1, NAN, None),
    **{f"{ALGORITHM}.{key}": (-0.1, 1.1, NAN, INFINITE, None) for key in ("gamma", "lam")},
    f"{R}.top_p": (0.7, 0, -1, float("nan"), None, 2),
    f"{R}.top_k": (20, 1, 0, None),
    f"{R}.temperature": (0, 0.001, -1, float("nan"), float("inf"), None),
    f"{R}.logprobs_mode": ("raw_logits", "processed_logits", "other"),
    f"{R}.ignore_eos": (True, None),
    f"{R}.full_determinism": (True,),
    f"{A}.shuffle": (True,),
    f"{A}.ppo_epochs": (0, -1, None, 1.5),
    f"{C}.ppo_epochs": (0, -1, None, 1.5),
    f"{A}.ppo_mini_batch_size": (0, -1, None, 1.5),
    f"{C}.ppo_mini_batch_size": (0, -1, None, 1.5),
    f"{A}.ppo_micro_batch_size_per_gpu": (0, -1, 1.5),
    f"{A}.ppo_max_token_len_per_gpu": (0, -1, None),
    f"{A}.entropy_from_logits_chunk_size": (0, -1),
    f"{A}.fsdp_config.entropy_from_logits_chunk_size": (0, -1),
    f"{C}.fsdp.entropy_from_logits_chunk_size": (0, -1),
    f"{ALGORITHM}.kl_penalty": ("full", None),
    f"{ALGORITHM}.kl_ctrl.type": ("none", None),
    f"{ALGORITHM}.kl_ctrl.kl_coef": (-1, float("nan"), float("inf"), None),
    f"{ALGORITHM}.kl_ctrl.target_kl": (0, -1, float("nan"), None),
    f"{ALGORITHM}.kl_ctrl.horizon": (0, -1, float("nan"), None),
    f"{ALGORITHM}.use_pf_ppo": (True, None),
    "data.max_prompt_length": (0, -1, None),
    "data.max_response_length": (0, -1, None),
    "trainer.critic_warmup": (-1, None, 0.5),
}
"""Values that are refused. Allowed values of a key that `COMPARED` lacks have tests of their own."""

TESTS = {
    f"{A}.policy_loss.loss_mode": "test_policy_losses.py",
    f"{ALGORITHM}.adv_estimator": "test_gradients.py",
    f"{ALGORITHM}.norm_adv_by_std_in_grpo": "test_gradients.py",
    f"{ALGORITHM}.rollout_correction.*": "test_policy_losses.py",
    f"{ALGORITHM}.filter_groups.*": "test_sampler.py",
    f"{ALGORITHM}.use_kl_in_reward": "test_turn_critic.py",
    "credit.*": "test_turn_estimators.py",
    "horizon.*": "../../unit/test_horizon.py",
    "episode.*": "../rollout/test_token_budgets.py",
    "agent.*": "../../unit/agents/test_agents.py",
    f"{M}.override_config.*": "../platform/test_families.py",
    f"{C}.model.override_config.*": "../platform/test_families.py",
    "*.use_remove_padding": "../platform/test_families.py",
    "*.lora*": "../models/test_lora.py",
    "*.target_modules": "../models/test_lora.py",
    "*.exclude_modules": "../models/test_lora.py",
    "*.ulysses_sequence_parallel_size": "../platform/test_resharding.py",
    "*.fsdp_size": "../platform/test_resharding.py",
    "*.use_dynamic_bsz": "../platform/test_cpu_engine.py",
    "*micro_batch_size*": "../platform/test_cpu_engine.py",
    f"{A}.calculate_entropy": "../platform/test_cpu_engine.py",
    f"{R}.n": "test_sampler.py",
    f"{R}.seed": "../platform/test_seeded_sampling.py",
    f"{R}.calculate_log_probs": "../config/test_bad_settings.py",
    f"{R}.engine_kwargs.*": "../config/test_bad_settings.py",
    f"{R}.enable_rollout_routing_replay": "../config/test_bad_settings.py",
    "data.overlong_prompt": "../rollout/test_token_budgets.py",
    "data.train_max_samples": "../../unit/envs/test_task_selection.py",
    "data.gen_batch_size": "test_sampler.py",
    "data.*batch_size": "test_sampler.py",
    "data.seed": "test_sampler.py",
    "data.shuffle": "test_sampler.py",
    "data.custom_cls.*": "test_sampler.py",
    "data.*_files": "test_sampler.py",
    "data.apply_chat_template_kwargs": "../rollout/test_chat_template.py",
    "distillation.*": "test_distillation.py",
}
"""Files with the comparison of a key, or of the keys of a pattern."""

SAME = "the same numbers in another place, at another time or in other parts"
UPSTREAM = "handed on as it is to PyTorch, transformers or verl, which has no other computation of it here"
ENGINE = "the engine's own way of computing; its log-probs are compared in each step (rollout/log_prob_gap)"
WATCHED = "no part of training: it is read by validation, records or logs alone"
CANNOT_MATTER = {
    "*.profiler.*": WATCHED,
    "*.checkpoint.*": WATCHED,
    f"{R}.val_kwargs.*": WATCHED,
    f"{R}.trace.*": WATCHED,
    f"{R}.prometheus.*": WATCHED,
    f"{R}.disable_log_stats": WATCHED,
    f"{R}.moe_load_balance_metrics_interval": WATCHED,
    "data.val*": WATCHED,
    "*.wrap_policy.*": SAME,
    "*offload*": SAME,
    "*.reshard_after_forward": SAME,
    "*.forward_prefetch": SAME,
    "*.use_orig_params": SAME,
    "*.use_no_sync_for_gradient_accumulation": SAME,
    "*.pad_to_length*": SAME,
    "*gradient_checkpointing": SAME,
    "*.entropy_checkpointing": SAME,
    "*.entropy_from_logits_*": SAME,
    "*_token_len_per_gpu": SAME,
    "*.log_prob_*": SAME,
    "*.use_shm": SAME,
    f"{R}.agent.*": SAME,
    f"{R}.n*": SAME,
    f"{R}.mode": SAME,
    f"{R}.router_config_path": SAME,
    "data.dataloader_num_workers": SAME,
    "*.model_dtype": UPSTREAM,
    "*.use_torch_compile": UPSTREAM,
    "*.full_determinism": UPSTREAM,
    "*.seed": UPSTREAM,
    "*.forward_only": UPSTREAM,
    "*strategy": UPSTREAM,
    "*.use_liger": UPSTREAM,
    "*fused_kernel*": UPSTREAM,
    "*.qat.*": UPSTREAM,
    "*.turbo_config.*": UPSTREAM,
    "*.mtp*": UPSTREAM,
    "*.optim.optimizer*": UPSTREAM,
    "*.optim.warmup_style": UPSTREAM,
    "*.model.*path": UPSTREAM,
    "*.trust_remote_code": UPSTREAM,
    "*.custom_chat_template": UPSTREAM,
    "*.external_lib": UPSTREAM,
    f"{C}.enable": UPSTREAM,
    "data.mm_processor_kwargs": UPSTREAM,
    f"{R}.*_length": SAME,
    f"{R}.dtype": ENGINE,
    f"{R}.*_parallel_size": ENGINE,
    f"{R}.max_*": ENGINE,
    f"{R}.gpu_memory_utilization": ENGINE,
    f"{R}.enforce_eager": ENGINE,
    f"{R}.cudagraph_capture_sizes": ENGINE,
    f"{R}.*cache*": ENGINE,
    f"{R}.enable_*": ENGINE,
    f"{R}.scheduling_policy": ENGINE,
    f"{R}.load_format": ENGINE,
    f"{R}.layered_summon": ENGINE,
    f"{R}.skip_tokenizer_init": ENGINE,
    f"{R}.quantization*": ENGINE,
    f"{R}.disaggregation.*": ENGINE,
    f"{R}.qat": ENGINE,
    f"{R}.checkpoint_engine.*": SAME,
}
"""Patterns of keys that cannot change what a step computes, and the reason."""
SECTIONS = (
    f"{A}.",
    f"{M}.",
    "actor_rollout_ref.ref.",
    f"{R}.",
    f"{C}.",
    f"{ALGORITHM}.",
    "data.",
    "credit.",
    "horizon.",
)
SECTIONS += ("episode.", "agent.", "distillation.", "trainer.critic_warmup")
"""Sections whose keys reach model, loss or step."""


@cache
def keys():
    """Keys of the sections that reach model, loss or step, without those that are refused whatever their value."""
    known = [key for key in dict(leaves(reference("agent_base"))) if key.startswith(SECTIONS)]
    rows = {key: (rows_of(key) or [KeyRow()])[0] for key in known if not key.endswith("_target_")}
    return [key for key, row in rows.items() if not (row.unread or row.effect == "none")]


def place_of(key):
    """Return how a key is tested."""
    if key in COMPARED:
        return "compared"
    if key in REFUSED:
        return "refused at its edges"
    tests = next((file for name, file in TESTS.items() if fnmatchcase(key, name)), None)
    return tests or next((f"cannot matter: {why}" for name, why in CANNOT_MATTER.items() if fnmatchcase(key, name)), "")


if __name__ == "__main__":
    sys.stdout.write("".join(f"{one:75} {place_of(one)}\n" for one in keys()))
