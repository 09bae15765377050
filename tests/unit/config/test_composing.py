"""Test that a recipe which is composed several times has the configs that Hydra composes."""

import pytest
from omegaconf import OmegaConf

from tests import ROOT
from tests.support.composing import recipe
from verl_agent.config.composing import RecipeComposer
from verl_agent.errors import ConfigError

FILE = ROOT / "recipes/guess_number/grpo_cpu.yaml"


@pytest.fixture(scope="module")
def composer():
    return RecipeComposer(FILE)


@pytest.mark.parametrize(
    "overrides",
    [
        ["data.seed=2", "~trainer.test_freq", "horizon.max_turns=[3]"],
        ["data.seed=3"],
        ["data={seed: 4}", "data.seed=5"],
        ["data.seed=5", "data={seed: 4}"],
        ["data.seed=2", "+overlay/algorithm=ppo", "critic.optim.lr=1e-3"],
    ],
    ids=lambda overrides: overrides[-1],
)
def test_each_list_of_overrides_has_the_config_that_hydra_composes(composer, overrides):
    composed = OmegaConf.to_container(recipe(FILE, *overrides), resolve=False)
    assert composer.plain(overrides, resolve=False) == composed


def test_several_values_for_a_key_raise_config_error(composer):
    with pytest.raises(ConfigError, match=r"data\.seed=4,8 is not allowed"):
        composer.compose(["data.seed=4,8"])
