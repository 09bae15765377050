"""Test that unknown keys and values of a wrong type raise an error that names the key."""

import pytest
from hydra import compose, initialize_config_module
from omegaconf import DictConfig

from verl_agent.config.keys import check_complete, check_keys, check_kind
from verl_agent.config.search_path import register_config
from verl_agent.errors import ConfigError
from verl_agent.training.preflight.loggers import check_loggers


def composed(*overrides: str, name: str = "agent_grpo") -> DictConfig:
    register_config()
    with initialize_config_module("verl_agent.config", version_base=None):
        return compose(name, list(overrides))


def test_known_keys_pass():
    check_keys(composed("+env.options.prompt=short", "+ray_kwargs.ray_init.num_gpus=1"), "agent_base")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "+data.train_batch_sise=8",
            "data has no 'train_batch_sise'. Did you mean 'train_batch_size'?",
        ),
        ("+horizn.max_turns=[1]", "Did you mean 'horizon'?"),
        ("+actor_rollout_ref.rollout.agent.num_worker=1", "Did you mean 'num_workers'?"),
    ],
)
def test_a_misspelt_key_raises_config_error_with_the_closest_key(override, message):
    with pytest.raises(ConfigError) as refused:
        check_keys(composed(override), "agent_base")
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("override", "base", "message"),
    [
        ("trainer.save_freq=often", "agent_base", "trainer.save_freq='often' is not allowed. Allowed: a number"),
        ("trainer.save_freq=after_each_epoch", "agent_base", "Allowed: a number"),
        (
            "trainer.val_before_train=1",
            "agent_base",
            "trainer.val_before_train=1 is not allowed. Allowed: true or false.",
        ),
        ("data.train_max_samples=true", "agent_base", "data.train_max_samples=True is not allowed. Allowed: a number"),
        ("horizon=4", "agent_base", "horizon=4 is not allowed. Allowed: a section with the keys max_turns, "),
        ("optim.lr=fast", "agent_sft", "optim.lr='fast' is not allowed. Allowed: a number"),
        ("trainer.test_freq=often", "agent_dpo", "trainer.test_freq='often' is not allowed. Allowed: a number"),
    ],
)
def test_a_value_of_another_type_raises_config_error(override, base, message):
    with pytest.raises(ConfigError) as refused:
        check_keys(composed(override, name="agent_grpo" if base == "agent_base" else base), base)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("overrides", "base"),
    [
        (("trainer.save_freq=3", "trainer.val_before_train=true", "actor_rollout_ref.actor.optim.lr=1"), "agent_base"),
        (("trainer.save_freq=after_each_epoch", "trainer.test_freq=2"), "agent_sft"),
        (("horizon.steps_per_stage=[20,30]", "horizon.max_turns=[4,6,8]"), "agent_base"),
        (("algorithm.rollout_correction.rollout_is_threshold='0.5_5.0'",), "agent_base"),
        (("+env.options.a=[1]", "trainer.max_actor_ckpt_to_keep=null"), "agent_base"),
    ],
)
def test_values_of_the_same_type_pass(overrides, base):
    check_keys(composed(*overrides, name="agent_grpo" if base == "agent_base" else base), base)


def test_a_missing_value_is_named():
    check_complete(DictConfig({"reward": {"path": "???"}, "model": {"path": "m"}}))
    with pytest.raises(ConfigError, match=r"lacks a value for data.n, model.path. model.path=DIR names a run"):
        check_complete(DictConfig({"model": {"path": "???"}, "data": {"n": "???"}}))


def test_a_missing_value_is_named_once_when_a_list_refers_to_it():
    horizon = {"eval_max_turns": "???", "max_turns": ["${horizon.eval_max_turns}"]}
    with pytest.raises(ConfigError, match=r"lacks a value for horizon\.eval_max_turns\.$"):
        check_complete(DictConfig({"horizon": horizon}))


def test_loggers_must_be_known_installed_and_include_file():
    check_loggers(["file", "tensorboard"])
    for names, message in (
        (["file", "tensorbord"], "trainer.logger='tensorbord' is not known. Did you mean 'tensorboard'?"),
        (["file", "swanlab"], "needs a package that is not installed: pip install swanlab"),
        ("tensorboard", "lacks 'file'"),
    ):
        with pytest.raises(ConfigError) as refused:
            check_loggers(names)
        assert message in str(refused.value)


def test_a_recipe_for_another_command_names_that_command():
    check_kind(composed(), "agent_base")
    with pytest.raises(ConfigError, match=r"not a recipe for `verl-agent sft`.* Run it with `verl-agent train`"):
        check_kind(composed(), "agent_sft")
    with pytest.raises(ConfigError, match=r"A recipe begins with `defaults: \[agent_eval\]`"):
        check_kind(DictConfig({"model": "m"}), "agent_eval")
