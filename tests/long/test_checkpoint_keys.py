"""Tests that a run that is killed resumes exactly, for each setting of checkpoints.

Each repeats the gradient norms, returns and final weights of a run that nobody stopped. Takes minutes on two cores for
each setting. The model is small and random. `LAYOUT=megatron` needs an environment of its own: `make setup-megatron`.
"""

import os
from functools import cache
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.support.training_runs import KILLED_STEPS, PPO, check_killed_run, train_killed, train_to_end
from verl_agent.runs.model_export import export_model
from verl_agent.trace.metrics_log import read_metrics

ACTOR = "actor_rollout_ref.actor"
ALL = "[model,optimizer,extra,hf_model]"
KEEP = ["trainer.max_actor_ckpt_to_keep=1", "trainer.max_critic_ckpt_to_keep=1"]
MEGATRON = ["model_engine=megatron", f"~{ACTOR}.fsdp_config", f"{ACTOR}.megatron.dtype=float32"]
SETTINGS = {
    "fsdp2": [
        ([], [f"{ACTOR}.checkpoint.save_contents={ALL}"]),
        ([], [f"{ACTOR}.checkpoint.load_contents={ALL}", f"{ACTOR}.checkpoint.save_contents={ALL}", KEEP[0]]),
        (PPO, [f"critic.checkpoint.save_contents={ALL}", *KEEP]),
    ],
    "megatron": [
        (MEGATRON, [f"{ACTOR}.checkpoint.save_contents={ALL}"]),
        (MEGATRON, [f"{ACTOR}.megatron.dist_ckpt_optim_fully_reshardable=true", KEEP[0]]),
        (MEGATRON, [f"{ACTOR}.optim.use_checkpoint_opt_param_scheduler=true"]),
    ],
}
"""Overrides of the run that nobody stops, and those that the other run adds, by layout."""

SAME_WEIGHTS = 1e-4
"""Largest difference of a weight: a tenth of what one update with `optim.lr=1e-3` may change."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory):
    """Return the folder of a run that nobody stops, which is made once for each list of overrides."""

    @cache
    def run(layout: tuple[str, ...]) -> Path:
        folder = tmp_path_factory.mktemp("undisturbed") / "root"
        saved = ["trainer.save_freq=1", f"trainer.total_training_steps={KILLED_STEPS}"]
        return train_to_end(folder, *layout, *saved)

    return run


def metrics_of(run: Path) -> dict[int, dict[str, float]]:
    return read_metrics(sorted(run.glob("metrics/*.jsonl")))


def largest_difference(one: Path, two: Path, folder: Path) -> float:
    """Return the largest absolute difference between the final weights of two runs."""
    left, right = (
        load_file(export_model(run, folder / name) / "model.safetensors") for run, name in ((one, "1"), (two, "2"))
    )
    assert left.keys() == right.keys()
    return max(float((left[name].float() - right[name].float()).abs().max()) for name in left)


@pytest.mark.parametrize(("layout", "changes"), SETTINGS[os.environ.get("LAYOUT", "fsdp2")])
def test_a_killed_run_repeats_the_steps_of_one_that_nobody_stopped(tmp_path: Path, undisturbed, layout, changes):
    whole = undisturbed(tuple(layout))
    run = train_killed(tmp_path / "root", *layout, *changes)
    check_killed_run(run)
    metrics, expected = metrics_of(run), metrics_of(whole)
    assert KILLED_STEPS in metrics
    for step, values in metrics.items():
        for key in ("actor/grad_norm", "critic/rewards/mean", "response_length/mean"):
            assert values[key] == pytest.approx(expected[step][key], rel=1e-4), (step, key)
    difference = largest_difference(run, whole, tmp_path)
    print(f"\nlargest difference of the final weights: {difference:.1e}")  # noqa: T201 - a measurement
    assert difference < SAME_WEIGHTS
