"""A key that nothing reads is refused, with what was meant."""

import pytest
from hydra import compose, initialize_config_module
from omegaconf import DictConfig

from verl_agent.config.keys import check_keys, check_kind
from verl_agent.config.search_path import register_config
from verl_agent.errors import ConfigError


def composed(*overrides: str) -> DictConfig:
    register_config()
    with initialize_config_module("verl_agent.config", version_base=None):
        return compose("agent_grpo", list(overrides))


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
def test_a_misspelt_key_is_named_with_a_hint(override, message):
    with pytest.raises(ConfigError) as refused:
        check_keys(composed(override), "agent_base")
    assert message in str(refused.value)


def test_a_recipe_for_another_command_names_that_command():
    check_kind(composed(), "agent_base")
    with pytest.raises(ConfigError, match=r"no recipe for `verl-agent sft`.* It is one for `verl-agent train`"):
        check_kind(composed(), "agent_sft")
    with pytest.raises(ConfigError, match=r"A recipe begins with `defaults: \[agent_eval\]`"):
        check_kind(DictConfig({"model": "m"}), "agent_eval")
