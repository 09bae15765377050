"""Settings that may change when a run resumes, for each command, as patterns of `verl_agent.runs.identity.claim`.

Every other setting is protected: a run keeps it from its first step to its last.
"""

MACHINE = (
    "*._target_",
    "*.attn_implementation",
    "*.checkpoint",
    "*.custom_cls",
    "*.dtype",
    "*.enable_activation_offload",
    "*.enable_gradient_checkpointing",
    "*.entropy_checkpointing",
    "*.entropy_from_logits_*",
    "*.forward_prefetch",
    "*.fsdp_size",
    "*.full_determinism",
    "*.fused_kernel_options",
    "*.megatron",
    "*.mixed_precision",
    "*.offload_policy",
    "*.pad_to_length*",
    "*.profiler",
    "*.reshard_after_forward",
    "*.tiled_mlp",
    "*.trust_remote_code",
    "*.turbo_config",
    "*.use_dynamic_bsz",
    "*.use_fused_kernels",
    "*.use_liger",
    "*.use_no_sync_for_gradient_accumulation",
    "*.use_orig_params",
    "*.use_remove_padding",
    "*.use_shm",
    "*.use_torch_compile",
    "*.wrap_policy",
    "*micro_batch_size*",
    "*_offload",
    "*_parallel_size",
    "*_token_len_per_gpu",
    "checkpoint",
    "model_engine",
    "offload",
    "trainer.balance_batch",
    "trainer.checkpoint_callback_class",
    "trainer.default_hdfs_dir",
    "trainer.default_local_dir",
    "trainer.del_local_ckpt_after_load",
    "trainer.device",
    "trainer.esi_redundant_time",
    "trainer.experiment_name",
    "trainer.log_val_generations",
    "trainer.logger",
    "trainer.max_*ckpt_to_keep",
    "trainer.n_gpus_per_node",
    "trainer.nnodes",
    "trainer.profile_interval",
    "trainer.project_name",
    "trainer.ray_wait_register_center_timeout",
    "trainer.resume_*",
    "trainer.rollout_data_dir",
    "trainer.save_freq",
    "trainer.test_freq",
    "trainer.val_before_train",
    "trainer.val_only",
    "trainer.validation_data_dir",
)
"""Settings of memory, kernels, parallelism, saving and logging, which every kind of training run may change."""
VALIDATION = (
    "actor_rollout_ref.rollout.val_kwargs",
    "data.val_*",
    "data.validation_shuffle",
    "env.eval_tasks",
    "env.overlap",
    "horizon.eval_max_turns",
    "trainer.v1.sampler.sampler_kwargs.val_group_size",
)
HOSTS = (
    "data.dataloader_num_workers",
    "env.hosts",
    "env.max_env_error_rate",
    "env.retries",
    "env.timeout_s",
    "trainer.v1.sampler.sampler_kwargs.max_env_error_rate",
    "trainer.v1.sampler.sampler_kwargs.retries",
)
ENGINE = (
    "actor_rollout_ref.nccl_timeout",
    "actor_rollout_ref.rollout.agent",
    "actor_rollout_ref.rollout.checkpoint_engine",
    "actor_rollout_ref.rollout.cudagraph_capture_sizes",
    "actor_rollout_ref.rollout.disable_log_stats",
    "actor_rollout_ref.rollout.disaggregation",
    "actor_rollout_ref.rollout.enable_chunked_prefill",
    "actor_rollout_ref.rollout.enable_prefix_caching",
    "actor_rollout_ref.rollout.enable_sleep_mode",
    "actor_rollout_ref.rollout.enforce_eager",
    "actor_rollout_ref.rollout.engine_kwargs",
    "actor_rollout_ref.rollout.free_cache_engine",
    "actor_rollout_ref.rollout.gpu_memory_utilization",
    "actor_rollout_ref.rollout.layered_summon",
    "actor_rollout_ref.rollout.load_format",
    "actor_rollout_ref.rollout.log_prob_*",
    "actor_rollout_ref.rollout.max_model_len",
    "actor_rollout_ref.rollout.max_num_*",
    "actor_rollout_ref.rollout.multi_stage_wake_up",
    "actor_rollout_ref.rollout.n_gpus_per_node",
    "actor_rollout_ref.rollout.nnodes",
    "actor_rollout_ref.rollout.prometheus",
    "actor_rollout_ref.rollout.router_config_path",
    "actor_rollout_ref.rollout.scheduling_policy",
    "actor_rollout_ref.rollout.trace",
    "actor_rollout_ref.actor.calculate_*",
    "*.log_prob_use_dynamic_bsz",
    "global_profiler",
    "ray_kwargs",
    "transfer_queue",
)
REPEATED = (
    "*.rollout_n",
    "actor_rollout_ref.rollout.prompt_length",
    "actor_rollout_ref.rollout.response_length",
    "data.env_*",
    "data.train_files",
    "trainer.v1.sampler.custom_sampler",
    "trainer.v1.sampler.sampler_kwargs.group_size",
)
"""Copies of other settings; a message names only the original."""
UNUSED = ("reward", "reward_model", "custom_reward_function", "sandbox_fusion")
REINFORCEMENT = (
    *MACHINE,
    *VALIDATION,
    *HOSTS,
    *ENGINE,
    *REPEATED,
    *UNUSED,
    "episode.record_dir",
    "trainer.total_epochs",
    "trainer.total_training_steps",
)
"""`verl-agent train`."""
OFFLINE = (
    *MACHINE,
    "data.agent",
    "data.env_*",
    "data.episodes",
    "data.model_type",
    "data.num_workers",
    "data.preference",
    "data.train_files",
    "data.val_*",
)
"""Settings that `verl-agent sft` and `dpo` share: of the machine, of validation, and copies of other settings."""
SFT = (
    *OFFLINE,
    "env.eval_tasks",
    "episodes.min_reward",
    "episodes.per_task",
    "episodes.records",
    "episodes.weight",
)
"""`verl-agent sft`; the content of recorded episodes and their weights is compared instead of their paths."""
DPO = (*OFFLINE, "preference.min_gap", "preference.per_task", "preference.records", "preference.val_share")
"""`verl-agent dpo`; the content of the pairs is compared instead of the paths of the records."""
PLAYING = (
    "engine",
    "env.hosts",
    "env.max_env_error_rate",
    "env.retries",
    "env.timeout_s",
    "evaluation.compare_with",
    "evaluation.concurrency",
    "evaluation.output_dir",
)
"""Settings of hosts and engine, which do not affect the results of an evaluation."""
EVALUATION = (
    *PLAYING,
    "env.eval_tasks",
    "env.train_tasks",
    "evaluation.max_tasks",
    "evaluation.purpose",
    "evaluation.samples",
    "evaluation.tasks",
)
"""`verl-agent eval`."""
EVOLVE = ("evolve.output_dir", "evolve.rounds", "evolve.validate")
"""`verl-agent evolve`, beside the settings of its recipes."""
