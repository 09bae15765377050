"""Keys of verl's YAML that its V1 trainer never reads, and the key to use instead.

verl keeps keys of its earlier trainers and of other engines, and accepts values for them. `check_keys` refuses a value
that would have no effect. `tests/unit/test_settings_act.py` derives the keys from verl's source, so the table cannot
miss one or keep one that a later version reads.
"""

from collections.abc import Mapping

_OWN_PROMPTS = "The agent builds the prompts; see the section agent."
_OWN_TURNS = "horizon.max_turns and the section episode limit an episode."
_OWN_REWARD = "The environment gives the reward."
_NO_IMAGES = "Models with images are not supported."
_LORA = "With FSDP, set {model}.lora_rank, lora_alpha and target_modules."
_LORA_KEYS = (
    *("type", "rank", "alpha", "dropout", "target_modules", "exclude_modules", "dropout_position", "freeze_"),
    *("lora_A_init_method", "lora_B_init_method", "a2a_experimental", "dtype", "adapter_path"),
)
_TRAINER = "It belongs to verl's earlier trainer."
_ACTOR, _REF, _ROLLOUT, _MODEL = (f"actor_rollout_ref.{name}" for name in ("actor", "ref", "rollout", "model"))

UNREAD: Mapping[str, str] = {
    f"{_ACTOR}.ppo_micro_batch_size": f"Set {_ACTOR}.ppo_micro_batch_size_per_gpu.",
    f"{_ACTOR}.freeze_vision_tower": _NO_IMAGES,
    f"{_ACTOR}.calculate_sum_pi_squared": "Its estimators are not supported.",
    f"{_ACTOR}.use_prefix_grouper": _TRAINER,
    f"{_ACTOR}.checkpoint.strict": _TRAINER,
    f"{_ACTOR}.use_fused_kernels": f"Set {_MODEL}.use_fused_kernels.",
    f"{_ACTOR}.rollout_n": f"Set {_ROLLOUT}.n.",
    f"{_REF}.rollout_n": f"Set {_ROLLOUT}.n.",
    f"{_ROLLOUT}.log_prob_micro_batch_size": f"Set {_ROLLOUT}.log_prob_micro_batch_size_per_gpu.",
    f"{_ROLLOUT}.do_sample": f"Set {_ROLLOUT}.temperature; 0 is greedy.",
    f"{_ROLLOUT}.val_kwargs.do_sample": f"Set {_ROLLOUT}.val_kwargs.temperature; 0 is greedy.",
    f"{_ROLLOUT}.over_sample_rate": _TRAINER,
    f"{_ROLLOUT}.multi_stage_wake_up": _TRAINER,
    f"{_ROLLOUT}.multi_turn.": _OWN_TURNS,
    f"{_ROLLOUT}.agent.custom_async_server.": f"Set {_ROLLOUT}.name.",
    "algorithm.use_pf_ppo": _TRAINER,
    "algorithm.pf_ppo.": _TRAINER,
    "critic.rollout_n": f"Set {_ROLLOUT}.n.",
    "critic.forward_max_token_len_per_gpu": "Set critic.ppo_max_token_len_per_gpu.",
    "critic.forward_micro_batch_size": "Set critic.ppo_micro_batch_size_per_gpu.",
    "critic.forward_micro_batch_size_per_gpu": "Set critic.ppo_micro_batch_size_per_gpu.",
    "critic.checkpoint.async_save": "Leave it at false.",
    "data.tokenizer": f"Set {_MODEL}.tokenizer_path.",
    "data.trust_remote_code": f"Set {_MODEL}.trust_remote_code.",
    "data.use_shm": f"Set {_MODEL}.use_shm.",
    "data.prompt_key": _OWN_PROMPTS,
    "data.return_": _OWN_PROMPTS,
    "data.filter_overlong_prompts": _OWN_PROMPTS,
    "data.filter_overlong_prompts_workers": _OWN_PROMPTS,
    "data.reward_fn_key": _OWN_REWARD,
    "data.truncation": _OWN_PROMPTS,
    "data.image_": _NO_IMAGES,
    "data.video_key": _NO_IMAGES,
    "data.audio_key": _NO_IMAGES,
    "data.function_tool_path": "Set agent.name=tools.",
    "data.tool_config_path": "Set agent.name=tools.",
    "sandbox_fusion.": _OWN_REWARD,
    "custom_reward_function.": _OWN_REWARD,
    "reward.custom_reward_function.": _OWN_REWARD,
    "trainer.balance_batch": "A batch is always balanced.",
    "trainer.esi_redundant_time": "Set trainer.save_freq.",
    "trainer.ray_wait_register_center_timeout": _TRAINER,
}
"""Remedy of each key that no engine reads. A key that ends with `.` or `_` stands for all keys that begin with it."""
UNREAD_WITH_FSDP: Mapping[str, str] = {
    f"{_ACTOR}.use_torch_compile": f"Set {_ACTOR}.fsdp_config.use_torch_compile.",
    f"{_REF}.use_torch_compile": f"Set {_REF}.fsdp_config.use_torch_compile.",
    f"{_ACTOR}.fsdp_config.dtype": f"Set {_ACTOR}.fsdp_config.mixed_precision.param_dtype.",
    f"{_REF}.fsdp_config.dtype": f"Set {_REF}.fsdp_config.mixed_precision.param_dtype.",
    "critic.fsdp.dtype": "Set critic.fsdp.mixed_precision.param_dtype.",
    f"{_ACTOR}.use_remove_padding": f"Set {_MODEL}.use_remove_padding.",
    f"{_ACTOR}.grad_clip": f"Set {_ACTOR}.optim.clip_grad.",
    "critic.grad_clip": "Set critic.optim.clip_grad.",
    "critic.ulysses_sequence_parallel_size": "Set critic.fsdp.ulysses_sequence_parallel_size.",
    "actor_rollout_ref.nccl_timeout": _TRAINER,
    f"{_MODEL}.tiled_mlp.": _TRAINER,
    "critic.model.tiled_mlp.": _TRAINER,
    **{f"{model}.lora.{key}": _LORA.format(model=model) for model in (_MODEL, "critic.model") for key in _LORA_KEYS},
}
"""Further keys, which the trainer with FSDP does not read."""


def remedy(key: str, megatron: bool) -> str | None:
    """Return what to do instead of setting a key that nothing reads, or None for other keys.

    Args:
        key: dotted key of a training config.
        megatron: True if Megatron trains, False for FSDP.
    """
    tables = (UNREAD,) if megatron else (UNREAD, UNREAD_WITH_FSDP)
    for table in tables:
        for name, instead in table.items():
            if key == name or (name.endswith((".", "_")) and key.startswith(name)):
                return instead
    return None
