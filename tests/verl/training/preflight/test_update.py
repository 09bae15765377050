"""Test that settings of the policy update which would have no effect are refused with the key that has one."""

import pytest
from omegaconf import OmegaConf

from tests.support.composing import OVERLAYS, grpo_base
from verl_agent.config.keys import check_keys
from verl_agent.errors import ConfigError
from verl_agent.training.preflight.update import check_update

CORRECTION = "algorithm.rollout_correction"
ACTOR = "actor_rollout_ref.actor"


def check(*changes: str) -> None:
    """Run the checks of a training command on GRPO's base with overlays and `key=value` changes.

    Merging them is much quicker than composing.
    """
    config = grpo_base().copy()
    OmegaConf.set_struct(config, False)
    for change in changes:
        overlay = change.removeprefix("+overlay/")
        merged = OmegaConf.load(OVERLAYS / f"{overlay.replace('=', '/')}.yaml") if overlay != change else None
        config.merge_with(OmegaConf.from_dotlist([change]) if merged is None else merged)
    check_keys(config, "agent_base")
    keys = ("actor_rollout_ref", "algorithm", "data", "trainer")
    plain = {key: OmegaConf.to_container(config[key], resolve=True) for key in keys}
    check_update(plain | {"critic": {"loss_agg_mode": config.critic.loss_agg_mode}})


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["+overlay/correction=token_is"],
        ["+overlay/correction=sequence_is"],
        ["+overlay/correction=token_rs"],
        ["+overlay/correction=sequence_rs"],
        ["+overlay/correction=none", f"{CORRECTION}.bypass_mode=true"],
        [f"{ACTOR}.loss_agg_mode=seq-mean-token-sum"],
        [f"{ACTOR}.use_kl_loss=true", f"{ACTOR}.kl_loss_type=low_var_kl+"],
        ["actor_rollout_ref.rollout.val_kwargs.temperature=0"],
        [f"{CORRECTION}.rollout_rs='token_k1,seq_mean_k3'", f"{CORRECTION}.rollout_rs_threshold='0.5_2.0,0.01'"],
        ["+overlay/ratio=gspo", "+overlay/correction=token_rs"],
        ["+overlay/ratio=turn", "+overlay/correction=sequence_rs"],
        ["algorithm.adv_estimator=gae", "algorithm.gamma=0.99", "algorithm.lam=0.95"],
        ["algorithm.adv_estimator=reinforce_plus_plus", "algorithm.gamma=0.99"],
        [f"{ACTOR}.clip_ratio_low=0.1", f"{ACTOR}.clip_ratio_high=0.3", f"{ACTOR}.clip_ratio_c=2.0"],
    ],
    ids=lambda overrides: " ".join(overrides),
)
def test_settings_that_take_effect_pass(overrides):
    check(*overrides)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            [f"{CORRECTION}.bypass_mode=true"],
            f"{CORRECTION}.rollout_is='token' has no effect with {CORRECTION}.bypass_mode=true",
        ),
        (
            ["+overlay/correction=token_rs", f"{CORRECTION}.rollout_is=null", f"{CORRECTION}.bypass_mode=true"],
            f"{CORRECTION}.rollout_rs='token_k1' has no effect with {CORRECTION}.bypass_mode=true",
        ),
        ([f"{CORRECTION}.loss_type=reinforce"], f"{CORRECTION}.loss_type='reinforce' has no effect"),
        (
            [f"{CORRECTION}.rollout_is=null", f"{CORRECTION}.rollout_is_threshold=5"],
            f"{CORRECTION}.rollout_is_threshold=5 has no effect without {CORRECTION}.rollout_is.",
        ),
        (
            [f"{CORRECTION}.rollout_is=null", f"{CORRECTION}.rollout_is_batch_normalize=true"],
            f"{CORRECTION}.rollout_is_batch_normalize=True has no effect without {CORRECTION}.rollout_is.",
        ),
        ([f"{CORRECTION}.rollout_is=tokens"], f"{CORRECTION}.rollout_is='tokens' is not allowed. Allowed: token, seq"),
        ([f"{CORRECTION}.rollout_is_threshold=0"], f"{CORRECTION}.rollout_is_threshold=0 is not allowed."),
        (
            [f"{CORRECTION}.rollout_is_threshold='0.5_5'"],
            f"{CORRECTION}.rollout_is_threshold='0.5_5' is not allowed.",
        ),
        ([f"{ACTOR}.loss_agg_mode=nonsense"], f"{ACTOR}.loss_agg_mode='nonsense' is not allowed."),
        (["+overlay/algorithm=ppo", "critic.loss_agg_mode=nonsense"], "critic.loss_agg_mode='nonsense' is not"),
        ([f"{ACTOR}.kl_loss_type=full"], f"{ACTOR}.kl_loss_type='full' is not allowed."),
        (["actor_rollout_ref.rollout.temperature=0"], "actor_rollout_ref.rollout.temperature=0 is not allowed"),
        (
            [f"{CORRECTION}.rollout_rs_threshold=2"],
            f"{CORRECTION}.rollout_rs_threshold=2 has no effect without {CORRECTION}.rollout_rs.",
        ),
        ([f"{CORRECTION}.rollout_rs=token_k1"], f"{CORRECTION}.rollout_rs_threshold=None is not allowed."),
        (
            [f"{CORRECTION}.rollout_rs=seq_mean_k3", f"{CORRECTION}.rollout_rs_threshold='0.5_2'"],
            f"{CORRECTION}.rollout_rs_threshold='0.5_2' is not allowed.",
        ),
        (
            [f"{CORRECTION}.rollout_rs=token_k4", f"{CORRECTION}.rollout_rs_threshold=2"],
            f"{CORRECTION}.rollout_rs='token_k4' is not allowed. Did you mean 'token_k",
        ),
        (
            ["actor_rollout_ref.rollout.calculate_log_probs=false"],
            f"{CORRECTION}.rollout_is='token' needs the engine's log-probs",
        ),
        (
            ["+overlay/ratio=turn", "+overlay/correction=token_rs"],
            f"{CORRECTION}.rollout_rs='token_k1' removes tokens from the middle of a turn",
        ),
        (
            ["+overlay/ratio=turn", "actor_rollout_ref.model.external_lib=null"],
            f"{ACTOR}.policy_loss.loss_mode='turn_ratio' is registered by verl_agent.training.policy_losses, and",
        ),
        (
            [f"{ACTOR}.policy_loss.loss_mode=bypass_mode"],
            f"{ACTOR}.policy_loss.loss_mode='bypass_mode' is unknown or does not support several turns.",
        ),
        ([f"{ACTOR}.clip_ratio=0.1"], f"{ACTOR}.clip_ratio=0.1 has no effect, because nothing reads it. Set {ACTOR}."),
        ([f"{ACTOR}.clip_ratio_low=null"], f"{ACTOR}.clip_ratio_low=None is not allowed. Allowed: a number > 0."),
        (
            ["+overlay/ratio=gspo", f"{ACTOR}.clip_ratio_c=2"],
            f"{ACTOR}.clip_ratio_c=2 is not read by {ACTOR}.policy_loss.loss_mode='gspo'.",
        ),
        (
            ["algorithm.gamma=0.99"],
            "algorithm.gamma=0.99 is not read by algorithm.adv_estimator='grpo'. Leave it at 1.0, or choose gae or ",
        ),
        (
            ["algorithm.lam=0.9", "algorithm.adv_estimator=reinforce_plus_plus"],
            "algorithm.lam=0.9 is not read by algorithm.adv_estimator='reinforce_plus_plus'.",
        ),
        (
            ["actor_rollout_ref.rollout.full_determinism=true"],
            "actor_rollout_ref.rollout.full_determinism=True gives all samples of a task the same seed",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_setting_without_effect_raises_config_error_with_the_key_that_has_one(overrides, message):
    with pytest.raises(ConfigError) as error:
        check(*overrides)
    assert str(error.value).startswith(message)
