"""Test the settings of asynchronous rollout: refused with key, reason and remedy, or accepted with every recipe."""

from contextlib import chdir, nullcontext
from pathlib import Path

import pytest
from omegaconf import DictConfig, OmegaConf
from verl.trainer.ppo.v1 import get_trainer_cls
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer, ReplayBufferAsync

from tests.support.composing import RECIPES, ROOT, accepted_by_verl, kind, merged
from tests.support.environments import skip_without_packages
from verl_agent.config.plan import RunPlan
from verl_agent.errors import ConfigError
from verl_agent.training.partial import PartialEpisodeTrainer, SeparateEpisodeTrainer
from verl_agent.training.preflight.condition_table import CONDITIONS
from verl_agent.training.preflight.conditions import check_conditions
from verl_agent.training.preflight.schedules import check_places
from verl_agent.training.trainer import EpisodeTrainer

GUESS = ROOT / "recipes/guess_number/grpo_cpu.yaml"
GPU = ROOT / "recipes/textcraft/grpo.yaml"
PARTIAL, SEPARATE = "+overlay/rollout=partial", "+overlay/rollout=separate"
COLOCATE, SAMPLER = "trainer.v1.colocate_async", "trainer.v1.sampler"
OWN_DEVICES, ROLLOUT = "trainer.v1.separate_async", "actor_rollout_ref.rollout"
CORRECTION, MTP = "algorithm.rollout_correction", "actor_rollout_ref.model.mtp"


def resolved(path: Path, *changes: str) -> DictConfig:
    config = merged(path, *changes)
    OmegaConf.resolve(config)
    return config


def check(*changes: str) -> None:
    check_conditions(OmegaConf.to_container(config := resolved(GUESS, *changes)), CONDITIONS)
    places(config)


def places(config: DictConfig) -> None:
    """Check that the environments of a run have places for all episodes in flight."""
    plan = RunPlan.of(OmegaConf.to_container(config))
    for run_env in plan.envs:
        check_places(plan, run_env)


@pytest.mark.parametrize(("sessions", "enough"), [(15, False), (16, True)])
def test_each_worker_needs_places_for_its_own_groups(sessions, enough):
    """Eight workers with 12 groups of 8: four of them get 2 groups, and hosts of another worker do not help."""
    sizes = ["data.train_batch_size=8", f"{ROLLOUT}.n=8", f"{ROLLOUT}.agent.num_workers=8"]
    hosts = ["env.hosts.count=1", f"env.hosts.sessions={sessions}"]
    with (
        nullcontext() if enough else pytest.raises(ConfigError, match=r"num_workers=8, but up to 16 .*count=2 or more")
    ):
        check(PARTIAL, *sizes, *hosts)


def test_hosts_on_the_machines_of_engines_are_shared_by_all_workers():
    """Training and engines have one machine each, so hosts run in Ray and one pool serves all workers."""
    with chdir(ROOT), pytest.raises(ConfigError) as error:
        places(resolved(GPU, SEPARATE, "env.hosts.count=1", "env.hosts.sessions=16"))
    assert "places for 16 episodes, but" in str(error.value)


def test_an_environment_of_a_mixture_needs_places_for_its_share_only():
    """One of two environments with 1 of 10 tasks: at most 2 of 4 groups of recent steps, not 6 of 6, are its own."""
    numbers = "{name: guess_number, weight: 1, train_tasks: small_train, eval_tasks: small_test}"
    crafts = "{name: textcraft, weight: 9, train_tasks: easy_train, eval_tasks: easy_test}"
    entries = [PARTIAL, "data.train_batch_size=4", "actor_rollout_ref.rollout.n=8", f"env.mixture=[{numbers},{crafts}]"]
    check(*entries, "env.hosts.count=6", "env.hosts.sessions=8")
    with pytest.raises(ConfigError, match="textcraft"):
        check(*entries, "env.hosts.count=2", "env.hosts.sessions=8")


DEEPEN = ["horizon.max_turns=[2,4]", "horizon.deepen=true"]
IN_RAY = ["env.hosts.where=ray", "env.hosts.count=1000"]


@pytest.mark.parametrize(("sessions", "enough"), [(7, False), (8, True)])
def test_groups_that_wait_for_their_last_episode_need_a_place_for_each(sessions, enough):
    """Else a group of which one episode has no session could hold the sessions that others need, until `wait_s`."""
    sizes = ["data.train_batch_size=4", f"{ROLLOUT}.n=4", f"{ROLLOUT}.agent.num_workers=2", "env.hosts.count=1"]
    check(*sizes, "env.hosts.sessions=1")
    with (
        nullcontext()
        if enough
        else pytest.raises(ConfigError, match=r"up to 8 .*and horizon\.deepen=true\)\..*count=2")
    ):
        check(*sizes, f"env.hosts.sessions={sessions}", *DEEPEN)


def test_a_session_that_ray_closes_while_its_episode_waits_is_refused():
    with chdir(ROOT):
        for idle_s in (120, 119):
            refused = nullcontext() if idle_s == 120 else pytest.raises(ConfigError, match=r"may take 120 s .*\[2, 4\]")
            with refused:
                places(resolved(GUESS, *DEEPEN, *IN_RAY, f"env.hosts.idle_s={idle_s}"))


@pytest.mark.parametrize(
    ("count", "message"),
    [("null", r"count=null .*up to 32 .*Set env\.hosts\.count=2 or"), ("1", r"places for 16 .*count=2"), ("2", "")],
)
def test_groups_that_wait_in_ray_need_a_known_number_of_places(count, message):
    sizes = ["data.train_batch_size=8", f"{ROLLOUT}.n=4", "env.hosts.sessions=16", "env.hosts.where=ray"]
    with chdir(ROOT), pytest.raises(ConfigError, match=message) if message else nullcontext():
        places(resolved(GUESS, *DEEPEN, *sizes, f"env.hosts.count={count}"))
    with chdir(ROOT):
        places(resolved(GUESS, *sizes))


TRAINED = [path for path in RECIPES if kind(path) == "agent_base"]


@pytest.mark.parametrize("path", TRAINED, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_recipe_accepts_asynchronous_rollout(path):
    skip_without_packages(path.parent.name)
    more = ["env.hosts.count=2"] if path.stem == "grpo_miniwob_cpu" else []  # its one host has places for 32 of 36
    config = resolved(path, PARTIAL, *more)
    check_conditions(OmegaConf.to_container(config), CONDITIONS)
    with chdir(ROOT):
        places(config)
    accepted_by_verl(config)


@pytest.mark.parametrize(
    ("changes", "kind", "buffer", "threshold"),
    [
        ((), EpisodeTrainer, ReplayBuffer, 8),
        ((PARTIAL,), PartialEpisodeTrainer, ReplayBufferAsync, 3),
        ((PARTIAL, "+overlay/algorithm=dapo"), PartialEpisodeTrainer, ReplayBufferAsync, 3),
        ((SEPARATE,), SeparateEpisodeTrainer, ReplayBufferAsync, 3),
    ],
    ids=["synchronous", "partial", "partial with DAPO", "separate"],
)
def test_a_mode_creates_its_trainer_and_sampler(changes, kind, buffer, threshold):
    """Engines on GPUs of their own cannot run here, so this is as far as their trainer is tested."""
    config = resolved(GPU, *changes)
    with chdir(ROOT):
        places(config)
        trainer = get_trainer_cls(config.trainer.v1.trainer_mode)(config)
    assert type(trainer) is kind and isinstance(trainer.replay_buffer, buffer)
    assert trainer.replay_buffer.max_off_policy_threshold == threshold
    assert (trainer.replay_buffer.filter_groups_metric == "reward") == config.algorithm.filter_groups.enable
    assert trainer.config.trainer.v1.trainer_mode == kind.mode
