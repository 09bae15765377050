"""Test that an overlay of reinforcement learning is refused in a recipe of another kind; the message names both."""

from copy import deepcopy

import pytest
from omegaconf import DictConfig

from tests import ROOT
from verl_agent.config.checks import check_keys
from verl_agent.config.composing import compose_recipe
from verl_agent.errors import ConfigError


def composed(recipe: str, base: str, *overlays: str) -> DictConfig:
    return compose_recipe(ROOT / "recipes" / recipe, base, [f"+overlay/{one}" for one in overlays])


@pytest.mark.parametrize("overlay", ["algorithm=distill", "algorithm=gigpo", "rollout=partial", "lora=rank_32"])
@pytest.mark.parametrize("base", ["agent_base", "agent_sft"])
def test_an_overlay_of_reinforcement_learning_is_refused_in_sft_and_its_commands(overlay: str, base: str) -> None:
    """`verl-agent plan` and `train` compose on `agent_base`, also a recipe of SFT."""
    with pytest.raises(ConfigError) as refused:
        composed("textcraft/sft_cpu.yaml", base, overlay)
    assert str(refused.value).startswith(f"overlay/{overlay} is an overlay of reinforcement learning (`verl-agent trai")
    assert "this recipe is one of SFT (`verl-agent sft`)" in str(refused.value)


@pytest.mark.parametrize(
    ("recipe", "base", "named"),
    [
        ("textcraft/dpo_cpu.yaml", "agent_dpo", "one of DPO (`verl-agent dpo`)"),
        ("textcraft/eval_cpu.yaml", "agent_eval", "one of evaluation (`verl-agent eval`)"),
        ("textcraft/evolve_cpu.yaml", "agent_evolve", "one of AgentEvol (`verl-agent evolve`)"),
    ],
)
def test_the_kind_of_the_recipe_is_named(recipe: str, base: str, named: str) -> None:
    with pytest.raises(ConfigError) as refused:
        composed(recipe, base, "algorithm=ppo")
    assert named in str(refused.value)


def test_an_overlay_that_sets_nothing_else_is_accepted_in_sft() -> None:
    composed("textcraft/sft_cpu.yaml", "agent_sft", "size=2ranks_cpu")


def test_the_overlays_of_another_config_do_not_count() -> None:
    """A run of reinforcement learning with an overlay reads a recipe of evaluation, too (`trainer.play`)."""
    sft = deepcopy(composed("textcraft/sft_cpu.yaml", "agent_sft"))
    composed("guess_number/grpo_cpu.yaml", "agent_base", "algorithm=gigpo")
    check_keys(sft, "agent_sft")
