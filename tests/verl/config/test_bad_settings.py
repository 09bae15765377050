"""Test that each bad setting of a training run is refused with its key, its value and what is allowed.

There is one case for each key and condition. The wording is the table's and is tested once.
"""

from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from omegaconf import OmegaConf

from tests.support.composing import ROOT, check_settings, merged
from verl_agent.config.catalogue import verl_rows
from verl_agent.config.keys import value_at
from verl_agent.errors import ConfigError
from verl_agent.training.preflight.condition_table import CONDITIONS
from verl_agent.training.preflight.conditions import Condition, Where, check_conditions, equal_to
from verl_agent.training.preflight.update_conditions import ENGINE_KWARGS, is_limit

ACTOR, MODEL, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.model", "actor_rollout_ref.rollout"
CORRECTION, V1 = "algorithm.rollout_correction", "trainer.v1"
GROUPS, FILTER, LOSS = f"{V1}.sampler.sampler_kwargs", "algorithm.filter_groups", f"{ACTOR}.policy_loss"
PARTIAL, SEPARATE = "+overlay/rollout=partial", "+overlay/rollout=separate"
PPO, TURN_PPO, DAPO, DISTILL = (f"+overlay/algorithm={name}" for name in ("ppo", "turn_ppo", "dapo", "distill"))
TEACHER, LOSS_OF_TEACHER = "distillation.teacher_models.teacher_model.model_path", "distillation.distillation_loss"
BOOTSTRAP, ADAPTIVE = "credit.truncated=bootstrap", "horizon={max_turns: [2, 4], adaptive: {success_above: 0.5}}"
JUDGE = "judge={rubric: {question: 'Solved?'}, api: {name: m, base_url: 'http://127.0.0.1:8000/v1'}}"
IN_REWARD, MODELS = "algorithm.use_kl_in_reward=true", (((), ACTOR), ((PPO,), "critic"))
WRONG_UPDATES = (
    "ppo_epochs=0",
    "ppo_mini_batch_size=0",
    "optim.lr=.nan",
    "optim.clip_grad=-1",
    "optim.weight_decay=-0.1",
    "optim.betas=[0.9,1.0]",
    "optim.lr_warmup_steps=-2",
    "optim.lr_warmup_steps_ratio=1.5",
    "optim.lr_scheduler_type=linear",
    "optim.override_optimizer_config={maximize: true}",
)
"""Changes of an update that are refused for the actor and the critic; test_traced_settings.py tries more."""


GPU = ROOT / "recipes/textcraft/grpo.yaml"
check = partial(check_settings, GPU)


NOT_ALLOWED = [
    ("trainer.use_v1=false",),
    (f"{V1}.sampler.sync_refill_failed_groups=true",),
    ("trainer.total_training_steps=0",),
    ("trainer.total_training_steps=abc",),
    ("trainer.nnodes=0",),
    ("data.train_batch_size=0",),
    (f"{ROLLOUT}.n=0",),
    ("trainer.total_epochs=5",),
    ("data.seed=-1",),
    (f"{ROLLOUT}.seed=-1",),
    ("trainer.max_restarts=-1",),
    ("trainer.hang_timeout_s=-1",),
    ("algorithm.adv_estimator=gigp",),
    ("credit.options={below: 0.5}",),
    ("critic.enable=true",),
    (PPO, "critic.enable=false"),
    ("algorithm.adv_estimator=turn_gae", "critic.enable=null"),
    (PPO, "critic.model.path=~/models/deepseek-llm-7b-chat"),
    (TURN_PPO, "critic.model.path=~/models/deepseek-llm-7b-chat"),
    (BOOTSTRAP,),
    (PPO, BOOTSTRAP, "algorithm.gamma=1.0"),
    (TURN_PPO, BOOTSTRAP, "credit.turn_gamma=1.0"),
    (PPO, BOOTSTRAP, "algorithm.gamma=0.9", "agent.options.turns_left=true"),
    ("+overlay/algorithm=turn_returns", f"{ACTOR}.use_kl_loss=false", "algorithm.use_kl_in_reward=true"),
    (f"{GROUPS}.group_size=3",),
    (f"{GROUPS}.val_group_size=3",),
    (f"{ROLLOUT}.n=1",),
    (f"{GROUPS}.min_group_size=1",),
    (f"{GROUPS}.min_group_size=99",),
    ("+overlay/algorithm=reinforce_pp", f"{GROUPS}.skip_uniform=true"),
    ("+overlay/algorithm=reinforce_pp", f"{FILTER}.enable=true"),
    (DAPO, f"{FILTER}.metric=acc"),
    (DAPO, ADAPTIVE),
    (f"{V1}.trainer_mode=sync",),
    (f"{V1}.sampler.custom_sampler.name=PartialEpisodeSampler",),
    (f"{V1}.sampler.custom_sampler.path=null",),
    (PARTIAL, f"{V1}.sampler.custom_sampler.name=EpisodeSampler"),
    (PARTIAL, f"{V1}.sampler.custom_sampler.path=null"),
    ("actor_rollout_ref.hybrid_engine=false",),
    (f"{ROLLOUT}.nnodes=1",),
    (PARTIAL, f"{ROLLOUT}.checkpoint_engine.backend=nccl"),
    (PARTIAL, f"{CORRECTION}.rollout_is=null"),
    (PARTIAL, f"{V1}.sampler.max_off_policy_threshold=1"),
    (PARTIAL, f"{V1}.sampler.max_off_policy_strategy=drop"),
    (PARTIAL, f"{V1}.colocate_async.num_warmup_batches=1.5"),
    (SEPARATE, f"{V1}.separate_async.num_warmup_batches=0"),
    (PARTIAL, f"{V1}.colocate_async.num_warmup_batches=0.001"),
    (SEPARATE, f"{V1}.separate_async.num_warmup_batches=0.001"),
    (PARTIAL, DAPO, f"{FILTER}.max_inflight_gen_batches=2"),
    (PARTIAL, ADAPTIVE),
    (PARTIAL, f"{MODEL}.mtp.enable=true", f"{MODEL}.mtp.enable_rollout=true"),
    (SEPARATE, f"{ROLLOUT}.nnodes=null"),
    (SEPARATE, f"{ROLLOUT}.n_gpus_per_node=0"),
    (SEPARATE, f"{ROLLOUT}.checkpoint_engine.backend=naive"),
    (SEPARATE, f"{V1}.separate_async.hybrid_rollout.enable_switch=true"),
    (SEPARATE, f"{V1}.separate_async.parameter_sync_step=2"),
    (SEPARATE, f"{ACTOR}.ppo_mini_batch_size=1"),
    (f"{ACTOR}.loss_agg_mode=nonsense",),
    (PPO, "critic.loss_agg_mode=nonsense"),
    (f"{ACTOR}.kl_loss_type=full",),
    (f"{ROLLOUT}.temperature=0.001",),
    (f"{ROLLOUT}.top_p=0.7",),
    (f"{ROLLOUT}.top_k=20",),
    (f"{ROLLOUT}.temperature=0.7", f"{ROLLOUT}.logprobs_mode=raw_logprobs"),
    (f"{ROLLOUT}.ignore_eos=true",),
    (f"{MODEL}.override_config={{num_experts_per_tok: 4}}",),
    (f"{MODEL}.override_config={{text_config: {{sliding_window: 8}}}}",),
    (f"{MODEL}.hf_config_path=/other/model",),
    *((f"{ROLLOUT}.engine_kwargs.vllm.{name}=1",) for name in ENGINE_KWARGS["vllm"]),
    *(("+overlay/rollout=sglang", f"{ROLLOUT}.engine_kwargs.sglang.{name}=1") for name in ENGINE_KWARGS["sglang"]),
    ("+overlay/algorithm=dr_grpo", f"{ACTOR}.loss_scale_factor=null"),
    (PPO, "critic.loss_agg_mode=seq-mean-token-sum-norm", "critic.loss_scale_factor=-5"),
    (f"{ACTOR}.clip_ratio_c=1",),
    (f"{ACTOR}.entropy_coeff=.nan",),
    (f"{ACTOR}.use_kl_loss=true", f"{ACTOR}.kl_loss_coef=-1"),
    (PPO, "critic.cliprange_value=0"),
    (PPO, "algorithm.gamma=1.1"),
    (PPO, "algorithm.lam=-0.1"),
    (IN_REWARD, "algorithm.kl_ctrl.kl_coef=-1"),
    (IN_REWARD, "algorithm.kl_penalty=full"),
    (IN_REWARD, "algorithm.kl_ctrl.type=none"),
    *((IN_REWARD, "algorithm.kl_ctrl.type=adaptive", f"algorithm.kl_ctrl.{key}=0") for key in ("target_kl", "horizon")),
    *((*critic, f"{model}.{change}") for critic, model in MODELS for change in WRONG_UPDATES),
    *(
        (*critic, f"{model}.use_dynamic_bsz={dynamic}", f"{model}.{key}=0")
        for critic, model in MODELS
        for dynamic, key in (("false", "ppo_micro_batch_size_per_gpu"), ("true", "ppo_max_token_len_per_gpu"))
    ),
    *(
        (*critic, f"{model}.optim.lr_scheduler_type=cosine", f"{model}.optim.{key}=-1")
        for critic, model in MODELS
        for key in ("min_lr_ratio", "num_cycles")
    ),
    *((f"{section}.entropy_from_logits_chunk_size=-1",) for section in (ACTOR, f"{ACTOR}.fsdp_config")),
    (PPO, "critic.fsdp.entropy_from_logits_chunk_size=-1"),
    ("data.max_prompt_length=0",),
    ("data.max_response_length=-1",),
    (PPO, "trainer.critic_warmup=-1"),
    (f"{LOSS}.loss_mode=bypass_mode",),
    (PPO, "algorithm.use_pf_ppo=true"),
    (f"{ACTOR}.clip_ratio_low=null",),
    (f"{ACTOR}.clip_ratio_high=-1",),
    (f"{ROLLOUT}.full_determinism=true",),
    (f"{ACTOR}.shuffle=true",),
    (f"{CORRECTION}.bypass_mode=true", f"{CORRECTION}.rollout_is=token"),
    (f"{CORRECTION}.bypass_mode=true", f"{CORRECTION}.rollout_is=null", f"{CORRECTION}.rollout_rs=token_k1"),
    (f"{ROLLOUT}.calculate_log_probs=false",),
    ("+overlay/correction=token_rs", f"{CORRECTION}.rollout_is=null", f"{ROLLOUT}.calculate_log_probs=false"),
    ("+overlay/correction=none", f"{CORRECTION}.bypass_mode=true", f"{ROLLOUT}.calculate_log_probs=false"),
    (f"{CORRECTION}.rollout_is=tokens",),
    (f"{CORRECTION}.rollout_is_threshold=0",),
    (f"{CORRECTION}.rollout_is_threshold='0.5_5'",),
    (f"{CORRECTION}.rollout_rs_threshold=2", f"{CORRECTION}.rollout_rs=token_k4"),
    (f"{CORRECTION}.rollout_rs=seq_mean_k3", f"{CORRECTION}.rollout_rs_threshold='0.5_2'"),
    ("+overlay/ratio=turn", f"{CORRECTION}.rollout_rs_threshold=2", f"{CORRECTION}.rollout_rs=token_k1"),
    ("agent.context.keep=summary", "algorithm.adv_estimator=rloo"),
    ("agent.context.keep=last", f"{ACTOR}.loss_agg_mode=seq-mean-token-mean"),
    ("agent.context.keep=last", "algorithm.use_kl_in_reward=true"),
    ("data.overlong_prompt=drp",),
    (f"{ROLLOUT}.tensor_model_parallel_size=3",),
    (f"{ROLLOUT}.tensor_model_parallel_size=0",),
    (f"{ROLLOUT}.tensor_model_parallel_size=null",),
    (f"{ROLLOUT}.max_model_len=299",),
    ("episode.max_tokens_per_turn=100000",),
    ("episode.max_tokens=100000",),
    (f"{ACTOR}.ppo_mini_batch_size=7", "data.train_batch_size=16"),
    (PPO, "critic.ppo_mini_batch_size=5", "data.train_batch_size=16"),
    (PPO, "critic.ppo_mini_batch_size=32", "data.train_batch_size=16"),
    (f"{ACTOR}.checkpoint.save_contents=[model]",),
    (PPO, "critic.checkpoint.save_contents=[model]"),
    ("trainer.max_critic_ckpt_to_keep=7",),
    (f"{ACTOR}.checkpoint.async_save=true",),
    (PPO, "critic.checkpoint.async_save=true"),
    (DISTILL, f"{TEACHER}=null"),
    (DISTILL, f"{TEACHER}=https://api.example.com/v1"),
    (DISTILL, f"{TEACHER}=api:gpt@http://localhost:8000/v1"),
    (DISTILL, f"{TEACHER}=${{actor_rollout_ref.model.path}}"),
    (DISTILL, f"{LOSS_OF_TEACHER}.loss_mode=k3"),
    (DISTILL, f"{LOSS_OF_TEACHER}.loss_mode=forward_kl_topk"),
    (DISTILL, f"{LOSS_OF_TEACHER}.use_policy_gradient=false"),
    (DISTILL, f"{LOSS_OF_TEACHER}.loss_max_clamp=0"),
    (DISTILL, f"{LOSS_OF_TEACHER}.use_task_rewards=true", f"{LOSS_OF_TEACHER}.distillation_loss_coef=-1"),
    (DISTILL, f"{ACTOR}.use_kl_loss=true"),
    (DISTILL, "algorithm.use_kl_in_reward=true"),
    (DISTILL, f"{GROUPS}.skip_uniform=true"),
    (DISTILL, f"{FILTER}.enable=true"),
    (DISTILL, f"{ACTOR}.strategy=veomni"),
    (PPO, DISTILL),
]
"""Changes of which the last one sets the key that is refused, unless another key is named below."""
ON_CPU = (SEPARATE, "trainer.device=cpu", "trainer.n_gpus_per_node=9999")
REPLAY = (f"{ACTOR}.megatron.router_replay.mode=R3", f"{ROLLOUT}.enable_rollout_routing_replay=true")
OF_MEGATRON = [
    (*REPLAY, f"{ROLLOUT}.enable_rollout_routing_replay=false"),
    (*REPLAY, f"{ROLLOUT}.name=sglang"),
    (*REPLAY, "trainer.v1.trainer_mode=verl_agent_partial"),
    (*REPLAY, "credit.truncated=bootstrap"),
]
"""Settings of an engine whose keys the recipe of these tests does not have."""
OTHER_KEY = {
    ("algorithm.adv_estimator=turn_gae", "critic.enable=null"): "critic.enable",
    (DAPO, ADAPTIVE): "horizon.adaptive",
    (PARTIAL, ADAPTIVE): "horizon.adaptive",
    (PPO, DISTILL): "algorithm.adv_estimator",
}


@pytest.mark.parametrize("changes", NOT_ALLOWED, ids=" ".join)
def test_a_value_that_is_not_allowed_raises_config_error_with_key_value_and_what_is_allowed(changes):
    with pytest.raises(ConfigError) as error:
        check(*changes)
    key = OTHER_KEY.get(changes, changes[-1].partition("=")[0])
    assert str(error.value).startswith(f"{key}=")
    assert " is not allowed" in str(error.value) and ". Allowed: " in str(error.value)


def test_every_condition_has_a_case_that_it_refuses():
    left = list(CONDITIONS)
    for changes in [*NOT_ALLOWED, *OF_MEGATRON, ON_CPU]:
        config = merged(GPU, *changes)
        OmegaConf.resolve(config)
        values = OmegaConf.to_container(config)  # made once: for each condition it would take minutes
        left = [condition for condition in left if not refuses(condition, values)]
    assert left == []


def refuses(condition: Condition, values: Any) -> bool:
    with suppress(TypeError, ZeroDivisionError, ConfigError):  # of a value that an earlier condition refuses
        return bool(condition.message(partial(value_at, values)))
    return False


@pytest.mark.parametrize("changes", OF_MEGATRON, ids=lambda changes: changes[-1])
def test_a_replay_of_experts_that_was_not_tried_is_refused(changes):
    config = merged(GPU, *changes)
    OmegaConf.resolve(config)
    key = changes[-1].partition("=")[0]
    replay = [one for one in CONDITIONS if one.key == key and "router_replay" in str(one.when)]
    with pytest.raises(ConfigError, match=r"is not allowed with .*router_replay\.mode=.*Allowed: "):
        check_conditions(OmegaConf.to_container(config), replay)


def test_engines_on_devices_of_their_own_need_gpus():
    config = merged(GPU, *ON_CPU)
    OmegaConf.resolve(config)
    with pytest.raises(ConfigError, match=r"trainer_mode='verl_agent_separate' is not allowed with trainer.device"):
        check_conditions(OmegaConf.to_container(config), CONDITIONS)


WITHOUT_EFFECT = [
    ("+overlay/algorithm=rloo", "algorithm.norm_adv_by_std_in_grpo=false"),
    (DAPO, f"{ACTOR}.kl_loss_coef=0.1"),
    (f"{ACTOR}.use_kl_loss=false", f"{ACTOR}.kl_loss_type=k1"),
    ("algorithm.kl_ctrl.kl_coef=0.1",),
    ("algorithm.use_kl_in_reward=true", "algorithm.kl_ctrl.target_kl=0.2"),
    (f"{LOSS}.clip_cov_ratio=0.1",),
    (f"{ACTOR}.loss_scale_factor=100",),
    ("+overlay/algorithm=dr_grpo", "+overlay/ratio=gspo", f"{ACTOR}.loss_scale_factor=100"),
    (f"{ACTOR}.data_loader_seed=7",),
    (f"{ACTOR}.clip_ratio=0.1",),
    ("+overlay/ratio=gspo", f"{ACTOR}.clip_ratio_c=2"),
    ("critic.optim.lr=1e-3",),
    ("critic.model.path=runs/critic",),
    (PPO, "critic.model.lora_alpha=8"),
    (f"{FILTER}.max_num_gen_batches=3",),
    ("trainer.val_only=true",),
    ("+overlay/lora=rank_32", f"{ACTOR}.use_kl_loss=true", "actor_rollout_ref.ref.log_prob_use_dynamic_bsz=false"),
    ("+overlay/rollout=sglang", f"{ROLLOUT}.max_num_batched_tokens=9"),
    ("trainer.test_freq=-1", "trainer.log_val_generations=3"),
    ("trainer.default_hdfs_dir=hdfs://a",),
    ("trainer.del_local_ckpt_after_load=true",),
    ("trainer.resume_from_path=runs/a/global_step_3",),
    ("trainer.critic_warmup=2",),
    ("trainer.test_freq=-1", "trainer.test_best=true"),
    ("trainer.save_freq=-1", "trainer.test_freq=1", "trainer.test_best=true"),
    ("trainer.save_freq=-1", "trainer.max_actor_ckpt_to_keep=9"),
    ("agent.context.turns=9",),
    ("agent.context.stride=2",),
    ("env.hosts.where=local", "env.hosts.num_cpus=1"),
    ("env.hosts.where=inline", "env.hosts.resource=play"),
    ("env.retries=0", "env.on_action_error=drop"),
    ("credit.turn_gamma=0.9",),
    ("algorithm.adv_estimator=turn_returns", "credit.turn_lam=0.9"),
    ("algorithm.adv_estimator=turn_returns", "credit.step_weight=2"),
    ("credit.anchor=history",),
    ("credit.place=turn",),
    ("algorithm.adv_estimator=rae", "credit.place=turn"),
    ("algorithm.adv_estimator=rae", "credit.turn_gamma=0.9"),
    ("algorithm.gamma=0.99",),
    ("algorithm.adv_estimator=reinforce_plus_plus", "algorithm.lam=0.9"),
    (f"{CORRECTION}.loss_type=reinforce",),
    (f"{CORRECTION}.rollout_is=null", f"{CORRECTION}.rollout_is_threshold=5"),
    (f"{CORRECTION}.rollout_is=null", f"{CORRECTION}.rollout_is_batch_normalize=true"),
    (f"{CORRECTION}.rollout_rs_threshold=2",),
    (f"{V1}.colocate_async.num_warmup_batches=0.5",),
    (f"{V1}.sampler.max_off_policy_threshold=3",),
    (f"{V1}.sampler.max_off_policy_strategy=wait",),
    (PARTIAL, f"{V1}.separate_async.num_warmup_batches=0.5"),
    (PARTIAL, "data.gen_batch_size=4"),
    (f"{ACTOR}.optim.min_lr_ratio=0.1",),
    (f"{ACTOR}.optim.total_training_steps=5",),
    (f"{ROLLOUT}.agent.agent_loop_config_path=loop.yaml",),
    (f"{MODEL}.lora_alpha=64",),
    (f"{MODEL}.lora_adapter_path=/an/adapter",),
    (PPO, "critic.model.lora_adapter_path=/an/adapter"),
    (f"{MODEL}.fused_kernel_options.impl_backend=triton",),
    (f"{ACTOR}.fsdp_config.use_orig_params=true",),
    (PPO, "critic.fsdp.pad_to_length_bucket=64"),
    (DAPO, "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=8"),
    ("reward.reward_manager.name=dapo",),
    ("distillation.distillation_loss.use_task_rewards=true",),
    (DISTILL, "distillation.distillation_loss.distillation_loss_coef=0.5"),
    (DISTILL, "distillation.distillation_loss.topk=8"),
    (DISTILL, "distillation.nnodes=1"),
    (DISTILL, "distillation.teacher_models.teacher_model.inference.tensor_model_parallel_size=1"),
    ("data.tokenizer=gpt2",),
    ("judge.mode=replace",),
    ("judge.weight=2.0",),
    (JUDGE, "judge.success_score=0.9"),
    (f"{ACTOR}.grad_clip=0.5",),
    (f"{ROLLOUT}.multi_turn.max_user_turns=3",),
    ("data.return_raw_chat=false",),
]
"""Changes of which the last one sets a key that has no effect."""


@pytest.mark.parametrize("changes", WITHOUT_EFFECT, ids=" ".join)
def test_a_setting_without_effect_raises_config_error_with_the_reason_and_its_default(changes):
    with pytest.raises(ConfigError) as error:
        check(*changes)
    assert str(error.value).startswith(f"{changes[-1].partition('=')[0]}=")
    assert " has no effect: " in str(error.value) and " Leave it at " in str(error.value)


@pytest.mark.parametrize(
    "changes",
    [
        (),
        ("+overlay/correction=sequence_is",),
        ("+overlay/correction=sequence_rs",),
        ("+overlay/correction=none", f"{CORRECTION}.bypass_mode=true"),
        (f"{ACTOR}.use_kl_loss=true", f"{ACTOR}.kl_loss_type=low_var_kl+", f"{ACTOR}.kl_loss_coef=0.1"),
        (f"{ROLLOUT}.val_kwargs.temperature=0",),
        (f"{CORRECTION}.rollout_rs='token_k1,seq_mean_k3'", f"{CORRECTION}.rollout_rs_threshold='0.5_2.0,0.01'"),
        ("+overlay/ratio=gspo", "+overlay/correction=token_rs"),
        ("+overlay/ratio=turn", "+overlay/correction=sequence_rs"),
        (PPO, "algorithm.gamma=0.99", "algorithm.lam=0.95", "critic.ppo_epochs=4", "critic.cliprange_value=0.2"),
        (PPO, BOOTSTRAP, "credit.step_cost=0.01"),
        ("+overlay/algorithm=reinforce_pp", "algorithm.gamma=0.99"),
        ("+overlay/algorithm=gigpo", "algorithm.norm_adv_by_std_in_grpo=false"),
        ("+overlay/algorithm=dr_grpo",),
        (f"{ACTOR}.clip_ratio_low=0.1", f"{ACTOR}.clip_ratio_high=0.3", f"{ACTOR}.clip_ratio_c=2.0"),
        (DAPO, f"{FILTER}.max_num_gen_batches=3"),
        ("algorithm.use_kl_in_reward=true", "algorithm.kl_ctrl.kl_coef=0.1", "algorithm.kl_penalty=abs"),
        ("trainer.val_only=true", "trainer.val_before_train=true"),
        ("agent.context.keep=last", "agent.context.turns=9", "agent.context.stride=2"),
        ("env.hosts.where=ray", "env.hosts.num_cpus=1"),
        (f"{ACTOR}.optim.lr_scheduler_type=cosine", f"{ACTOR}.optim.min_lr_ratio=0.1"),
        (f"{MODEL}.lora_rank=8", f"{MODEL}.lora_alpha=8", f"{MODEL}.target_modules=[q_proj]"),
        (f"{MODEL}.lora_rank=8", f"{MODEL}.lora_adapter_path=/an/adapter"),
        (f"{MODEL}.override_config={{attention_dropout: 0.0, text_config: {{router_jitter_noise: 0.0}}}}",),
        (f"{MODEL}.override_config={{use_cache: false, output_router_logits: false}}",),
        ("+overlay/engine=fsdp", f"{ACTOR}.fsdp_config.use_orig_params=true"),
        (PPO, "critic.model.lora_rank=8", "critic.model.lora_alpha=8"),
        (PARTIAL,),
        (SEPARATE,),
        (DISTILL, f"{LOSS_OF_TEACHER}.use_task_rewards=true", f"{LOSS_OF_TEACHER}.distillation_loss_coef=0.5"),
        (DISTILL, f"{MODEL}.lora_rank=8", "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=4"),
        (DISTILL, PARTIAL, f"{LOSS_OF_TEACHER}.loss_max_clamp=5.0"),
        (DISTILL, ADAPTIVE),
        (DISTILL, "horizon={max_turns: [2, 4], per_task: {rule: signal}}"),
        (DISTILL, "horizon={max_turns: [2, 4], deepen: true}"),
        (JUDGE, "judge.mode=replace", "judge.success_score=0.9", "judge.api.retries=2"),
        ("trainer.max_restarts=0", f"{ACTOR}.checkpoint.save_contents=[model]"),
        ("env.mixture=[{name: textcraft, agent: {context: {keep: last, turns: 9}}}, {name: guess_number}]",),
    ],
    ids=" ".join,
)
def test_settings_that_have_an_effect_pass(changes):
    check(*changes)


def test_a_setting_that_only_an_entry_of_a_mixture_has_is_checked():
    """The run as a whole has the default of `credit.turn_gamma`."""
    with pytest.raises(ConfigError, match=r"^credit\.turn_gamma=0\.9 has no effect"):
        check("env.mixture=[{name: textcraft, credit: {turn_gamma: 0.9}}]")


def test_the_message_of_a_condition_names_key_value_condition_allowed_values_and_remedy():
    values = {"a.size": 3, "a.limit": 2, "a.mode": "wide", "a.on": True}
    for condition, message in (
        (Condition("a.size", equal_to("a.limit"), "Set a.limit."), "Allowed: 2, the value of a.limit. Set a.limit."),
        (Condition("a.size", Where("{a.limit} or less", lambda size, get: size < 3)), "Allowed: 2 or less."),
        (Condition("a.size", bool), "Allowed: true or false."),
    ):
        assert condition.message(values.get) == f"a.size=3 is not allowed. {message}"
    applies = Condition("a.on", type(None), when={"a.mode": ["wide"], "a.size": "set"})
    assert applies.message(values.get) == "a.on=true is not allowed with a.mode='wide' and a.size=3. Allowed: null."
    assert Condition("a.on", type(None), when={"a.mode": ["narrow"]}).message(values.get) == ""


def test_the_message_for_a_setting_without_effect_names_the_condition_and_the_present_value():
    with pytest.raises(ConfigError) as error:
        check("+overlay/algorithm=rloo", "algorithm.norm_adv_by_std_in_grpo=false")
    assert str(error.value) == (
        "algorithm.norm_adv_by_std_in_grpo=false has no effect: it is read only with algorithm.adv_estimator='grpo' or "
        "'gigpo', not 'rloo'. Leave it at true."
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ((f"{ACTOR}.checkpoint.save_contents=[model]",), "Allowed: a list that also has optimizer and extra. "),
        (
            (f"{ACTOR}.ppo_mini_batch_size=7", "data.train_batch_size=16"),
            f"Allowed: a multiple of {ACTOR}.ppo_mini_batch_size=7. A step is split into mini-batches of so many "
            f"tasks. Or set {ACTOR}.ppo_mini_batch_size to a divisor.",
        ),
        (
            ("env.mixture=[{name: textcraft}, {name: guess_number, episode: {max_tokens_per_turn: 99999}}]",),
            "env.mixture[1] (guess_number): episode.max_tokens_per_turn=99999 is not allowed. Allowed: at most ",
        ),
        (
            ("env.mixture=[{name: textcraft}, {name: babyai, label: far, credit: {place: turn}}]",),
            "env.mixture[1] (far): credit.place='turn' has no effect: ",
        ),
    ],
)
def test_a_message_names_what_is_missing_the_remedy_and_the_entry_of_a_mixture(changes, message):
    with pytest.raises(ConfigError) as error:
        check(*changes)
    assert message in str(error.value)


def test_what_all_entries_of_a_mixture_share_names_none_of_them():
    with pytest.raises(ConfigError, match=r"^episode\.max_tokens_per_turn=99999 is not allowed"):
        check("env.mixture=[{name: textcraft}, {name: guess_number}]", "episode.max_tokens_per_turn=99999")


def test_the_share_of_groups_in_flight_that_is_named_is_accepted_for_every_batch():
    key = f"{V1}.colocate_async.num_warmup_batches"
    rows = [one for one in CONDITIONS if one.key == key]
    for batch in range(1, 257):
        values = {f"{V1}.trainer_mode": "verl_agent_partial", "data.train_batch_size": batch, key: 0.5 / batch}
        (message,) = filter(None, (row.message(values.get) for row in rows))
        values[key] = float(message.partition("Allowed: ")[2].split()[0])
        assert [row.message(values.get) for row in rows] == ["", ""]


def test_a_limit_is_a_positive_number_or_a_pair_in_order():
    assert is_limit(2) and is_limit("0.5") and is_limit("0.5_2", pair=True)
    assert not any((is_limit(True), is_limit(0), is_limit("0.5_2"), is_limit("2_0.5", pair=True), is_limit("a")))


def test_a_row_that_names_a_remedy_has_a_reason():
    """A remedy without `unread` or `effect` would never be shown: the key would be accepted without effect."""
    assert [key for key, row in verl_rows().items() if row.instead and not (row.unread or row.effect)] == []
