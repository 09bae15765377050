"""Test the settings of asynchronous rollout: refused with key, reason and remedy, or accepted with every recipe."""

from contextlib import chdir, nullcontext
from pathlib import Path

import pytest
from omegaconf import DictConfig, OmegaConf
from verl.trainer.ppo.v1 import get_trainer_cls
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer, ReplayBufferAsync

from tests.support.composing import RECIPES, ROOT, SHARED, accepted_by_verl, kind, recipe
from verl_agent.config.mixture import run_envs
from verl_agent.errors import ConfigError
from verl_agent.training.partial import PartialEpisodeTrainer, SeparateEpisodeTrainer
from verl_agent.training.preflight.asynchrony import _check_staleness, check_asynchrony
from verl_agent.training.preflight.update import check_update
from verl_agent.training.trainer import EpisodeTrainer

GUESS = ROOT / "recipes/guess_number/grpo_cpu.yaml"
GPU = ROOT / "recipes/textcraft/grpo.yaml"
PARTIAL, SEPARATE = "+overlay/rollout=partial", "+overlay/rollout=separate"
COLOCATE, SAMPLER = "trainer.v1.colocate_async", "trainer.v1.sampler"
OWN_DEVICES, ROLLOUT = "trainer.v1.separate_async", "actor_rollout_ref.rollout"
CORRECTION = "algorithm.rollout_correction"


def merged(path: Path, *changes: str) -> DictConfig:
    """Return a recipe with overlays and `key=value` changes; merging them is much quicker than composing."""
    config = recipe(path)
    OmegaConf.set_struct(config, False)
    for change in changes:
        overlay = change.removeprefix("+overlay/")
        read = OmegaConf.load(SHARED / f"overlay/{overlay.replace('=', '/')}.yaml") if overlay != change else None
        config.merge_with(OmegaConf.from_dotlist([change]) if read is None else read)
    OmegaConf.resolve(config)
    return config


def check(*changes: str) -> None:
    plain = OmegaConf.to_container(merged(GUESS, *changes))
    check_asynchrony(plain, run_envs(plain))


@pytest.mark.parametrize(
    ("overrides", "key", "remedy"),
    [
        ([f"{CORRECTION}.rollout_is=null"], f"{CORRECTION}.rollout_is=None", "Add +overlay/correction=token_is"),
        (["+overlay/correction=none"], f"{CORRECTION}.rollout_is=None", "Add +overlay/correction=token_is"),
        ([f"{SAMPLER}.max_off_policy_threshold=1"], "max_off_policy_threshold=1", "a whole number >= 2"),
        ([f"{SAMPLER}.max_off_policy_threshold=null"], "max_off_policy_threshold=None", "a whole number >= 2"),
        ([f"{SAMPLER}.max_off_policy_strategy=drop"], "max_off_policy_strategy='drop'", "Set it to wait"),
        ([f"{COLOCATE}.num_warmup_batches=0"], "num_warmup_batches=0", "above 0"),
        ([f"{COLOCATE}.num_warmup_batches=1.5"], "num_warmup_batches=1.5", "at most 1"),
        (["data.train_batch_size=1"], "less than one group", "Set it to 1 or more"),
        (["env.hosts.count=1", "env.hosts.sessions=4"], "env.hosts.count=1", "Set env.hosts.count="),
        (["horizon={max_turns: [2, 4], adaptive: {success_above: 0.5}}"], "horizon.adaptive", "steps_per_stage"),
        (["+overlay/algorithm=dapo", "algorithm.filter_groups.max_inflight_gen_batches=2"], "=2 has no effect", "at 1"),
        (["trainer.v1.separate_async.num_warmup_batches=0.5"], "separate_async.num_warmup_batches=0.5", "Leave it at"),
        ([f"{SAMPLER}.custom_sampler.name=EpisodeSampler"], "name='EpisodeSampler'", "'PartialEpisodeSampler'"),
        ([f"{SAMPLER}.custom_sampler.path=null"], "path=None", "'pkg://verl_agent.training.partial_sampler'"),
        (["actor_rollout_ref.hybrid_engine=false"], "hybrid_engine=False does not work", "Leave it at true"),
        (["data.gen_batch_size=4"], "data.gen_batch_size=4 has no effect", "Leave it at null"),
        ([f"{ROLLOUT}.nnodes=1"], f"{ROLLOUT}.nnodes=1 has no effect", "overlay/rollout=separate"),
        ([f"{ROLLOUT}.checkpoint_engine.backend=nccl"], "backend='nccl' has no effect", "overlay/rollout=separate"),
        (["trainer.v1.trainer_mode=sync"], "trainer_mode='sync'", "verl_agent_partial"),
    ],
)  # fmt: skip
def test_a_setting_that_asynchronous_rollout_cannot_serve_raises_config_error(overrides, key, remedy):
    with pytest.raises(ConfigError) as error:
        check(PARTIAL, *overrides)
    assert key in str(error.value) and remedy in str(error.value)


CHANGES = {f"{COLOCATE}.num_warmup_batches": 0.5, f"{SAMPLER}.max_off_policy_threshold": 3}
CHANGES[f"{SAMPLER}.max_off_policy_strategy"] = "wait"


@pytest.mark.parametrize("change", [f"{key}={value}" for key, value in CHANGES.items()])
def test_settings_of_asynchronous_rollout_have_no_effect_in_a_synchronous_run(change):
    with pytest.raises(ConfigError, match=r"has no effect .* Add \+overlay/rollout=partial"):
        check(change)


def test_a_setting_of_engines_on_devices_of_their_own_names_their_overlay():
    with pytest.raises(ConfigError, match=r"has no effect .* Add \+overlay/rollout=separate"):
        check(f"{OWN_DEVICES}.num_warmup_batches=0.5")


def test_the_share_of_groups_in_flight_that_is_named_is_accepted_for_every_batch():
    plain = OmegaConf.to_container(merged(GUESS, PARTIAL))
    section = plain["trainer"]["v1"]["colocate_async"]
    for batch in range(1, 257):
        plain["data"]["train_batch_size"], section["num_warmup_batches"] = batch, 0.5 / batch
        with pytest.raises(ConfigError, match="less than one group") as error:
            _check_staleness(plain, "verl_agent_partial")
        section["num_warmup_batches"] = float(str(error.value).partition("Set it to ")[2].split()[0])
        _check_staleness(plain, "verl_agent_partial")


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
    plain = OmegaConf.to_container(merged(GPU, SEPARATE, "env.hosts.count=1", "env.hosts.sessions=16"))
    with chdir(ROOT), pytest.raises(ConfigError) as error:
        check_asynchrony(plain, run_envs(plain))
    assert "places for 16 episodes, but" in str(error.value)


def test_an_environment_of_a_mixture_needs_places_for_its_share_only():
    """One of two environments with 1 of 10 tasks: at most 2 of 4 groups of recent steps, not 6 of 6, are its own."""
    numbers = "{name: guess_number, weight: 1, train_tasks: small_train, eval_tasks: small_test}"
    crafts = "{name: textcraft, weight: 9, train_tasks: easy_train, eval_tasks: easy_test}"
    entries = [PARTIAL, "data.train_batch_size=4", "actor_rollout_ref.rollout.n=8", f"env.mixture=[{numbers},{crafts}]"]
    check(*entries, "env.hosts.count=6", "env.hosts.sessions=8")
    with pytest.raises(ConfigError, match="textcraft"):
        check(*entries, "env.hosts.count=2", "env.hosts.sessions=8")


TRAINED = [path for path in RECIPES if kind(path) == "agent_base"]


@pytest.mark.parametrize("path", TRAINED, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_recipe_accepts_asynchronous_rollout(path):
    more = ["env.hosts.count=2"] if path.stem == "grpo_miniwob_cpu" else []  # its one host has places for 32 of 36
    config = merged(path, PARTIAL, *more)
    plain = OmegaConf.to_container(config)
    with chdir(ROOT):
        check_asynchrony(plain, run_envs(plain))
    check_update(plain)
    accepted_by_verl(config)


@pytest.mark.parametrize(
    ("path", "change", "key"),
    [
        (GUESS, "data.seed=1", "trainer.device='cpu'"),
        (GPU, f"{ROLLOUT}.nnodes=0", f"{ROLLOUT}.nnodes=0"),
        (GPU, f"{ROLLOUT}.nnodes=null", f"{ROLLOUT}.nnodes=None"),
        (GPU, "actor_rollout_ref.hybrid_engine=false", "hybrid_engine=False does not work"),
        (GPU, f"{OWN_DEVICES}.hybrid_rollout.enable_switch=true", "enable_switch=True is not supported"),
        (GPU, "actor_rollout_ref.actor.ppo_mini_batch_size=8", "ppo_mini_batch_size=8 must be"),
        (GPU, "actor_rollout_ref.rollout.checkpoint_engine.backend=naive", "checkpoint_engine.backend='naive'"),
        (GPU, "trainer.v1.separate_async.parameter_sync_step=2", "parameter_sync_step=2 is not supported"),
    ],
)
def test_engines_on_devices_of_their_own_need_those_devices(path, change, key):
    plain = OmegaConf.to_container(merged(path, SEPARATE, change))
    with chdir(ROOT), pytest.raises(ConfigError) as error:
        check_asynchrony(plain, run_envs(plain))
    assert key in str(error.value)


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
    config = merged(GPU, *changes)
    with chdir(ROOT):
        check_asynchrony(OmegaConf.to_container(config), run_envs(OmegaConf.to_container(config)))
        trainer = get_trainer_cls(config.trainer.v1.trainer_mode)(config)
    assert type(trainer) is kind and isinstance(trainer.replay_buffer, buffer)
    assert trainer.replay_buffer.max_off_policy_threshold == threshold
    assert (trainer.replay_buffer.filter_groups_metric == "reward") == config.algorithm.filter_groups.enable
    assert trainer.config.trainer.v1.trainer_mode == kind.mode
