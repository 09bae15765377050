"""Test that a key which has no effect is refused, alone or because of another key, and that the table is complete."""

import pytest
from omegaconf import OmegaConf

from tests.support.composing import OVERLAYS, grpo_base
from verl_agent.config.unread import check_unread, rows
from verl_agent.errors import ConfigError

ACTOR, MODEL = "actor_rollout_ref.actor", "actor_rollout_ref.model"
PPO = "+overlay/algorithm=ppo"


def check(*changes: str) -> None:
    """Run the check on GRPO's base with overlays and `key=value` changes."""
    config = grpo_base().copy()
    OmegaConf.set_struct(config, False)
    for change in changes:
        overlay = change.removeprefix("+overlay/")
        merged = OmegaConf.load(OVERLAYS / f"{overlay.replace('=', '/')}.yaml") if overlay != change else None
        config.merge_with(OmegaConf.from_dotlist([change]) if merged is None else merged)
    check_unread(config)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            ["+overlay/algorithm=rloo", "algorithm.norm_adv_by_std_in_grpo=false"],
            "algorithm.norm_adv_by_std_in_grpo=false has no effect: it is read only with algorithm.adv_estimator="
            "'grpo' or 'gigpo'. Leave it at true.",
        ),
        (
            ["+overlay/algorithm=reinforce_pp", "algorithm.norm_adv_by_std_in_grpo=false"],
            "algorithm.norm_adv_by_std_in_grpo=false has no effect",
        ),
        (
            ["+overlay/algorithm=dapo", f"{ACTOR}.kl_loss_coef=0.1"],
            f"{ACTOR}.kl_loss_coef=0.1 has no effect: it is read only with {ACTOR}.use_kl_loss=true.",
        ),
        ([f"{ACTOR}.use_kl_loss=false", f"{ACTOR}.kl_loss_type=k1"], f"{ACTOR}.kl_loss_type='k1' has no effect"),
        (
            ["algorithm.kl_ctrl.kl_coef=0.1"],
            "algorithm.kl_ctrl.kl_coef=0.1 has no effect: it is read only with algorithm.use_kl_in_reward=true.",
        ),
        (["algorithm.kl_penalty=abs"], "algorithm.kl_penalty='abs' has no effect"),
        (
            ["algorithm.use_kl_in_reward=true", "algorithm.kl_ctrl.target_kl=0.2"],
            "algorithm.kl_ctrl.target_kl=0.2 has no effect: it is read only with algorithm.kl_ctrl.type='adaptive'.",
        ),
        (
            [f"{ACTOR}.policy_loss.clip_cov_ratio=0.1"],
            f"{ACTOR}.policy_loss.clip_cov_ratio=0.1 has no effect: It belongs to a loss of verl that is not supported "
            "on several turns. Leave it at 0.0002.",
        ),
        ([f"{ACTOR}.policy_loss.kl_cov_ratio=0.1"], f"{ACTOR}.policy_loss.kl_cov_ratio=0.1 has no effect"),
        ([f"{ACTOR}.tau_pos=2.0"], f"{ACTOR}.tau_pos=2.0 has no effect"),
        (
            [f"{ACTOR}.loss_scale_factor=100"],
            f"{ACTOR}.loss_scale_factor=100 has no effect: it is read only with {ACTOR}.loss_agg_mode="
            "'seq-mean-token-sum-norm'.",
        ),
        (
            ["+overlay/algorithm=dr_grpo", "+overlay/ratio=gspo"],
            f"{ACTOR}.loss_scale_factor=512 has no effect",
        ),
        ([f"{ACTOR}.data_loader_seed=7"], f"{ACTOR}.data_loader_seed=7 has no effect: data.seed decides about"),
        (
            ["critic.optim.lr=1e-3"],
            "critic.optim.lr=0.001 has no effect: it is read only with algorithm.adv_estimator='gae' or 'turn_gae'.",
        ),
        (["critic.ppo_epochs=4"], "critic.ppo_epochs=4 has no effect"),
        (["critic.cliprange_value=0.2"], "critic.cliprange_value=0.2 has no effect"),
        (
            ["algorithm.filter_groups.max_num_gen_batches=3"],
            "algorithm.filter_groups.max_num_gen_batches=3 has no effect: it is read only with "
            "algorithm.filter_groups.enable=true.",
        ),
        (["algorithm.filter_groups.metric=success"], "algorithm.filter_groups.metric='success' has no effect"),
        (
            ["trainer.val_only=true"],
            "trainer.val_only=true has no effect: it is read only with trainer.val_before_train=true.",
        ),
        (["trainer.resume_from_path=runs/a/global_step_3"], "trainer.resume_from_path='runs/a/global_step_3' has no"),
        (
            ["agent.context.turns=9"],
            "agent.context.turns=9 has no effect: it is read only with agent.context.keep='last' or 'summary'.",
        ),
        (["agent.context.stride=2"], "agent.context.stride=2 has no effect"),
        (["env.hosts.where=local", "env.hosts.num_cpus=1"], "env.hosts.num_cpus=1 has no effect"),
        ([f"{ACTOR}.optim.min_lr_ratio=0.1"], f"{ACTOR}.optim.min_lr_ratio=0.1 has no effect: it is read only with"),
        ([f"{ACTOR}.optim.num_cycles=1"], f"{ACTOR}.optim.num_cycles=1 has no effect"),
        ([f"{ACTOR}.optim.zero_indexed_step=false"], f"{ACTOR}.optim.zero_indexed_step=false has no effect"),
        ([PPO, "critic.optim.min_lr_ratio=0.1"], "critic.optim.min_lr_ratio=0.1 has no effect"),
        (
            [f"{ACTOR}.optim.total_training_steps=5"],
            f"{ACTOR}.optim.total_training_steps=5 has no effect: Set trainer.total_training_steps. Leave it at -1.",
        ),
        (["actor_rollout_ref.rollout.agent.agent_loop_config_path=loop.yaml"], "actor_rollout_ref.rollout.agent.agent"),
        (
            [f"{MODEL}.lora_alpha=64"],
            f"{MODEL}.lora_alpha=64 has no effect: it is read only with {MODEL}.lora_rank=a number above 0.",
        ),
        ([f"{MODEL}.target_modules=[q_proj]"], f"{MODEL}.target_modules=['q_proj'] has no effect"),
        (
            [f"{MODEL}.fused_kernel_options.impl_backend=triton"],
            f"{MODEL}.fused_kernel_options.impl_backend='triton' has no effect: it is read only with "
            f"{MODEL}.use_fused_kernels=true.",
        ),
        (
            [f"{ACTOR}.fsdp_config.use_orig_params=true"],
            f"{ACTOR}.fsdp_config.use_orig_params=true has no effect: it is read only with {ACTOR}.strategy='fsdp'.",
        ),
        ([PPO, "critic.fsdp.pad_to_length_bucket=64"], "critic.fsdp.pad_to_length_bucket=64 has no effect"),
        (["critic.model.path=runs/critic"], "critic.model.path='runs/critic' has no effect: it is read only with algo"),
        (["critic.model.lora_rank=8"], "critic.model.lora_rank=8 has no effect"),
        ([PPO, "critic.model.lora_alpha=8"], "critic.model.lora_alpha=8 has no effect"),
        (["critic.fsdp.full_determinism=true"], "critic.fsdp.full_determinism=true has no effect"),
        (
            ["+overlay/algorithm=dapo", "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=8"],
            "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=8 has no effect: it is read only with "
            f"{ACTOR}.use_kl_loss=true or algorithm.use_kl_in_reward=true.",
        ),
        (["trainer.save_freq=-1", "trainer.max_actor_ckpt_to_keep=9"], "trainer.max_actor_ckpt_to_keep=9 has no"),
        (["reward.reward_manager.name=dapo"], "reward.reward_manager.name='dapo' has no effect: The environment gives"),
        (["distillation.enabled=true"], "distillation.enabled=true has no effect: Distillation is not supported."),
        (["data.tokenizer=gpt2"], "data.tokenizer='gpt2' has no effect: nothing reads it. Set actor_rollout"),
        (
            ["critic.forward_micro_batch_size_per_gpu=2"],
            "critic.forward_micro_batch_size_per_gpu=2 has no effect: nothing reads it. Set critic.ppo_micro",
        ),
        (
            [f"{ACTOR}.grad_clip=0.5"],
            f"{ACTOR}.grad_clip=0.5 has no effect: nothing reads it. Set {ACTOR}.optim.clip_grad.",
        ),
        (
            ["actor_rollout_ref.rollout.multi_turn.max_user_turns=3"],
            "actor_rollout_ref.rollout.multi_turn.max_user_turns=3 has no effect: nothing reads it. horizon.",
        ),
        (
            ["data.return_raw_chat=false"],
            "data.return_raw_chat=false has no effect: nothing reads it. The agent builds the prompts;",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_key_that_nothing_reads_raises_config_error_with_the_key_that_it_depends_on(changes, message):
    with pytest.raises(ConfigError) as error:
        check(*changes)
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    "changes",
    [
        [],
        ["+overlay/algorithm=dapo", "algorithm.filter_groups.max_num_gen_batches=3"],
        ["+overlay/algorithm=dr_grpo"],
        ["+overlay/algorithm=gigpo", "algorithm.norm_adv_by_std_in_grpo=false"],
        [f"{ACTOR}.kl_loss_coef=0.1", f"{ACTOR}.kl_loss_type=k1"],
        ["algorithm.use_kl_in_reward=true", "algorithm.kl_ctrl.kl_coef=0.1", "algorithm.kl_penalty=abs"],
        [PPO, "critic.optim.lr=1e-3", "critic.ppo_epochs=4", "critic.cliprange_value=0.2"],
        [f"{ACTOR}.ppo_epochs=2", f"{ACTOR}.ppo_mini_batch_size=2", f"{ACTOR}.loss_agg_mode=seq-mean-token-mean"],
        ["trainer.val_only=true", "trainer.val_before_train=true"],
        ["agent.context.keep=last", "agent.context.turns=9", "agent.context.stride=2"],
        ["env.hosts.where=ray", "env.hosts.num_cpus=1"],
        [f"{ACTOR}.optim.lr_scheduler_type=cosine", f"{ACTOR}.optim.min_lr_ratio=0.1"],
        [f"{MODEL}.lora_rank=8", f"{MODEL}.lora_alpha=8", f"{MODEL}.target_modules=[q_proj]"],
        [f"{MODEL}.use_fused_kernels=true", f"{MODEL}.fused_kernel_options.impl_backend=triton"],
        ["+overlay/engine=fsdp", f"{ACTOR}.fsdp_config.use_orig_params=true"],
        [PPO, "critic.fsdp.pad_to_length=64", "critic.fsdp.pad_to_length_bucket=64"],
        [PPO, "critic.fsdp.full_determinism=true"],
        [PPO, "critic.model.lora_rank=8", "critic.model.lora_alpha=8"],
        ["algorithm.use_kl_in_reward=true", "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=8"],
    ],
    ids=lambda changes: " ".join(changes),
)
def test_a_key_that_is_read_passes(changes):
    check(*changes)


def test_a_key_that_an_environment_of_a_mixture_reads_passes():
    check("agent.context.turns=9", "env.mixture=[{name: textcraft, agent: {context: {keep: last}}}, {name: babyai}]")


def test_a_row_that_names_a_remedy_has_a_reason():
    """A remedy without `unread` or `effect` would never be shown: the key would be accepted without effect."""
    assert [key for key, row in rows().items() if row.instead and not (row.unread or row.effect)] == []
