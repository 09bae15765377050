"""Test the config that verl reads: it is the recipe, but for what the machine and the start decide."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf
from safetensors.torch import save_file

from tests.support.composing import ROOT, recipe
from verl_agent.config.catalogue import may_change
from verl_agent.config.keys import leaves
from verl_agent.config.plan import OfflinePlan, RunPlan
from verl_agent.config.plan_parts import TEACHER_PATH, Teacher
from verl_agent.errors import ConfigError
from verl_agent.models.resolve import prepare_smollm2
from verl_agent.runs.identity import claim, read_settings
from verl_agent.training.verl_config import environment, for_trainer, identity, to_verl, to_verl_offline

RECIPE = ROOT / "recipes/guess_number/grpo_cpu.yaml"
VARIABLES = "ray_kwargs.ray_init.runtime_env.env_vars"
OF_MACHINE = {
    "trainer.default_local_dir",
    "episode.record_dir",
    "actor_rollout_ref.model.external_lib",
    "actor_rollout_ref.rollout.agent.agent_loop_config_path",
    "actor_rollout_ref.rollout.router_config_path",
    "actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes",
    "ray_kwargs.ray_init._temp_dir",
    "ray_kwargs.ray_init.runtime_env.py_executable",
}
"""Keys that may differ from the recipe."""


@pytest.fixture(scope="module")
def plan() -> RunPlan:
    return RunPlan.read(recipe(RECIPE))


def changed(plan: RunPlan, config: object) -> set[str]:
    """Return the keys in which a config differs from the settings of a plan, without environment variables."""
    given, made = (dict(leaves(values)) for values in (plan.values, OmegaConf.to_container(config)))
    keys = {key for key in given.keys() | made.keys() if given.get(key) != made.get(key)}
    return {key for key in keys if not key.startswith(VARIABLES)}


def test_a_new_run_has_the_settings_of_its_recipe(plan):
    assert changed(plan, to_verl(plan)) <= OF_MACHINE
    assert plan.value(VARIABLES) == {}, "the plan does not change"


def test_a_run_resumes_from_the_tracker_and_validates_first_only_if_all_steps_are_done(plan):
    plan = replace(plan, schedule=replace(plan.schedule, steps=9))
    for step, all_done in ((3, False), (9, True)):
        trainer = to_verl(plan, step).trainer
        assert (trainer.resume_mode, trainer.val_before_train, trainer.val_only) == ("auto", all_done, all_done)


def test_a_resumed_run_first_repeats_a_validation_that_the_log_lacks(plan, tmp_path):
    """The earlier start saved a step, logged it before, and died while it validated."""
    schedule, log = replace(plan.schedule, folder=tmp_path, steps=9, test_every=3), tmp_path / "metrics/1.jsonl"
    log.parent.mkdir()
    validated = {"critic/score/mean": 0.5, "val-core/guess_number/reward/mean@1": 0.5}
    for step, values, repeats in ((3, {"critic/score/mean": 0.5}, True), (3, validated, False), (4, {}, False)):
        log.write_text(json.dumps({"step": step, "data": values}) + "\n")
        trainer = to_verl(replace(plan, schedule=schedule), step).trainer
        assert (trainer.val_before_train, trainer.val_only) == (repeats, False)
    log.write_text(json.dumps({"step": 3, "data": validated}) + "\n")
    (tmp_path / "metrics/2.jsonl").write_text(json.dumps({"step": 3, "data": {"critic/score/mean": 0.4}}) + "\n")
    assert to_verl(replace(plan, schedule=schedule), 3).trainer.val_before_train  # of other weights
    never = replace(plan, schedule=replace(schedule, test_every=-1))
    assert not to_verl(never, 3).trainer.val_before_train


@pytest.mark.parametrize(
    ("given", "step", "passed"),
    [("latest", 0, "auto"), ("latest", 3, "auto"), ("auto", 0, "auto"), ("disable", 0, "disable")],
)
def test_verl_gets_a_resume_mode_that_it_knows(plan, given, step, passed):
    schedule = replace(plan.schedule, resume=given)
    assert to_verl(replace(plan, schedule=schedule), step).trainer.resume_mode == passed
    offline = OfflinePlan.read(recipe(ROOT / "recipes/textcraft/sft_cpu.yaml"))
    assert (
        to_verl_offline(replace(offline, schedule=replace(offline.schedule, resume=given)), step).trainer.resume_mode
        == passed
    )


def test_variables_of_the_start_are_kept_by_the_next_config_of_the_same_start(plan):
    """Each config draws another name of the run, by which its processes meet."""
    first = environment(to_verl(plan, 0, {"A": "1"}))
    assert first["A"] == "1" and environment(to_verl(plan)) != first
    assert environment(to_verl(plan, 0, {**first, "B": "2"})) == {**first, "B": "2"}


START = """
import json, os, sys
from verl_agent.commands import train
from verl_agent.commands.hydra_main import run_recipe
def show(config):
    assert "torch" not in sys.modules
    from verl_agent.training.verl_config import RunPlan, environment, to_verl
    of_workers = environment(to_verl(RunPlan.read(config)))
    print(json.dumps([{name: values[name] for name in values if name in NAMES} for values in (os.environ, of_workers)]))
NAMES = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
sys.argv[1:] = ["--config-dir", sys.argv[1], "--config-name", "grpo_cpu", *sys.argv[2:]]
run_recipe(show, "agent_base")
"""


@pytest.mark.parametrize(
    ("override", "chosen", "expected"),
    [
        (None, {}, {"GOMP_SPINCOUNT": "1000"}),
        (None, {"OMP_WAIT_POLICY": "active"}, {"OMP_WAIT_POLICY": "active", "GOMP_SPINCOUNT": "30000000000"}),
        ("OMP_WAIT_POLICY=passive", {}, {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "0"}),
        ("OMP_WAIT_POLICY=passive", {"GOMP_SPINCOUNT": "7"}, {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "0"}),
        ("GOMP_SPINCOUNT=9", {}, {"GOMP_SPINCOUNT": "9"}),
        ("GOMP_SPINCOUNT=null", {}, {"GOMP_SPINCOUNT": "1000"}),
        ("GOMP_SPINCOUNT=9", {"OMP_WAIT_POLICY": "active"}, {"GOMP_SPINCOUNT": "9"}),
    ],
)
def test_the_policy_of_a_recipe_or_a_user_is_the_only_one_of_a_run_and_its_workers(override, chosen, expected):
    """GOMP_SPINCOUNT, which workers of Ray inherit, would win over OMP_WAIT_POLICY."""
    clean = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    command = [sys.executable, "-c", START, str(RECIPE.parent), *([f"+{VARIABLES}.{override}"] if override else [])]
    environment = clean | {"VERL_PLATFORM": "cpu"} | chosen
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [expected, expected]


def test_the_identity_of_a_run_has_models_and_checkpoints_as_the_recipe_names_them(plan):
    located = replace(plan, actor=replace(plan.actor, path="/a/folder"))
    settings, name = identity(located), plan.value("actor_rollout_ref.model.path")
    assert to_verl(located).actor_rollout_ref.model.path == "/a/folder"
    assert settings["actor_rollout_ref"]["model"]["path"] == name
    assert settings["trainer"]["max_actor_ckpt_to_keep"] == plan.schedule.keep


@pytest.mark.parametrize("flag", ["kl_loss", "kl_in_reward", "distils"])
def test_a_resumed_run_keeps_the_weights_of_its_reference(plan, tmp_path, flag):
    """The path may name a run whose last checkpoint is another one at the next start."""
    initial, folder, own = (tmp_path / name for name in ("initial", "teacher", "own"))

    def write(folder: Path, value: float) -> None:
        folder.mkdir(exist_ok=True)
        save_file({"weight": torch.full((8,), value)}, folder / "model.safetensors")

    write(initial, 0.0)
    write(folder, 0.0)
    actor, estimation = replace(plan.actor, path=str(initial)), replace(plan.estimation, **{flag: True})
    teacher = Teacher(path=str(folder), adds_rewards=False, coefficient=1.0, clamp=None) if flag == "distils" else None
    found = replace(plan, actor=actor, teacher=teacher, estimation=estimation)
    reference, other = (folder, initial) if teacher else (initial, folder)

    def claimed() -> None:
        claim(own, identity(found), may_change("train"), contents="another run", advice="Choose another folder.")

    claimed()
    write(other, 1.0)
    claimed()
    write(reference, 1.0)
    key = TEACHER_PATH if teacher else "actor_rollout_ref.model.path"
    with pytest.raises(ConfigError, match=rf"holds another run: weights of {key} was '\w+', is now '\w+'\."):
        claimed()
    without = replace(found, teacher=None, estimation=replace(found.estimation, **{flag: False}))
    assert not any(name.startswith("weights of") for name in identity(without))


def test_a_run_of_an_earlier_version_or_with_a_model_of_the_hub_has_no_weights_to_compare(plan, tmp_path):
    found = replace(plan, estimation=replace(plan.estimation, kl_loss=True))
    on_hub = replace(found, actor=replace(found.actor, path="owner/model"))
    here = replace(found, actor=replace(found.actor, path=str(prepare_smollm2())))
    of_adapters = replace(here, actor=replace(here.actor, model={**here.actor.model, "lora_rank": 8}))
    assert identity(on_hub).keys() == identity(of_adapters).keys() == identity(plan).keys()
    for each in (on_hub, here):
        claim(tmp_path, identity(each), may_change("train"), contents="another run", advice="Choose another folder.")
    assert read_settings(tmp_path)["weights of actor_rollout_ref.model.path"]


def test_a_trainer_has_verls_mode_and_removes_no_checkpoint(plan):
    made = for_trainer(to_verl(plan), "sync").trainer
    assert (made.v1.trainer_mode, made.max_actor_ckpt_to_keep, made.max_critic_ckpt_to_keep) == ("sync", None, None)
