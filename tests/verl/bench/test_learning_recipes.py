"""Tests of the recipes of the learning bench: every arm composes, and arms differ only in the compared setting."""

import pytest
from omegaconf import OmegaConf

from tests.bench.learning.__main__ import RECIPES, STUDIES, Run
from tests.support.composing import accepted_by_verl, recipe
from verl_agent.config.keys import check_keys
from verl_agent.config.mixture import run_envs
from verl_agent.errors import ConfigError
from verl_agent.training.preflight.algorithms import check_algorithm
from verl_agent.training.preflight.lengths import check_micro_batches

RUNS = [Run(study, arm, 1) for study in STUDIES for arm in STUDIES[study].arms]


@pytest.mark.parametrize("run", RUNS, ids=lambda run: f"{run.study}-{run.arm}")
def test_verl_accepts_every_arm(run: Run):
    config = recipe(RECIPES / f"{STUDIES[run.study].recipe}.yaml", *run.overrides())
    check_keys(config, "agent_base")
    plain = OmegaConf.to_container(config, resolve=True)
    check_algorithm(plain, run_envs(plain))
    OmegaConf.resolve(config)
    check_micro_batches(config)
    accepted_by_verl(config)


@pytest.mark.parametrize(("gpus", "divides"), [(2, True), (3, False), (8, True)])
def test_a_mini_batch_that_the_ranks_cannot_split_is_refused(gpus: int, divides: bool):
    config = recipe(RECIPES / "learn.yaml", f"trainer.n_gpus_per_node={gpus}")
    config.actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu = 1
    episodes = config.actor_rollout_ref.actor.ppo_mini_batch_size * config.actor_rollout_ref.rollout.n
    assert (episodes % gpus == 0) == divides
    if divides:
        check_micro_batches(config)
    else:
        with pytest.raises(ConfigError, match="3 ranks cannot split evenly"):
            check_micro_batches(config)


def test_arms_of_the_curriculum_study_differ_only_in_the_horizon():
    """Steps and validations also differ, so that every arm plays the same number of turns."""
    arms = [run for run in RUNS if run.study == "curriculum"]
    configs = [recipe(RECIPES / "curriculum.yaml", *run.overrides()) for run in arms]
    for config in configs:
        del config.horizon, config.trainer.total_training_steps, config.trainer.test_freq
    first, *others = [OmegaConf.to_container(config, resolve=False) for config in configs]
    assert others == [first] * 2
