"""First tests on a machine with a GPU (`make test-gpu`): installation, and two training steps of each engine.

Each combination of a training engine or attention with a rollout engine trains SmolLM2-135M for two steps; combinations
whose packages are not installed are skipped. Agreement of the log-probs, memory against the estimate, sleep and wake of
the engine and the time of each part of a step are written to gpu_report.json, which can be attached to an issue.
"""

import subprocess
import sys
from importlib import import_module

import pytest
from omegaconf import OmegaConf

from tests import ROOT
from tests.support.composing import recipe
from tests.support.gpu_report import (
    REPORT,
    ROLLOUTS,
    SMALL,
    TRAINERS,
    Report,
    estimated,
    parse_trace,
    sampled_memory,
    summarize,
)
from verl_agent.commands.doctor import diagnose
from verl_agent.models.resolve import resolve_model
from verl_agent.platform.versions import installed_version
from verl_agent.system.checks import Status
from verl_agent.trace.metrics_log import read_metrics

RECIPE = ROOT / "recipes/textcraft/grpo.yaml"
MODULES = {
    "torch": "torch",
    "verl": "verl.trainer.main_ppo",
    "vllm": "verl.workers.rollout.vllm_rollout.vllm_async_server",
    "sglang": "verl.workers.rollout.sglang_rollout.async_sglang_server",
    "flash-attn": "flash_attn",
    "kernels": "kernels",
    "liger-kernel": "liger_kernel.transformers",
    "torchcodec": "torchcodec",
    "megatron-core": "verl.workers.engine.megatron.transformer_impl",
    "megatron-bridge": "megatron.bridge",
    "transformer-engine-torch": "transformer_engine.pytorch",
}
"""A module of each installed distribution that a GPU path imports."""

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def report():
    return Report(REPORT.resolve())


def test_the_installation_is_complete(report, tmp_path):
    report.checks = diagnose(tmp_path)
    report.write()
    assert not [row for row in report.checks if row.status is Status.MISSING]
    import torch

    assert torch.cuda.is_available()
    assert (
        torch.ones(2, 2, device="cuda", dtype=torch.bfloat16) @ torch.ones(2, 2, device="cuda", dtype=torch.bfloat16)
    ).sum() == 8


@pytest.mark.parametrize("package", MODULES)
def test_each_installed_package_imports(report, package):
    """In a process of its own, because engines change state of torch when they are imported."""
    if installed_version(package) is None:
        report.modules[package] = "not installed"
        report.write()
        pytest.skip("not installed")
    done = subprocess.run([sys.executable, "-c", f"import {MODULES[package]}"], capture_output=True, text=True)
    report.modules[package] = "ok" if done.returncode == 0 else done.stderr[-2000:]
    report.write()
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("rollout", ROLLOUTS)
@pytest.mark.parametrize("trainer", TRAINERS)
def test_two_training_steps(report, tmp_path, trainer, rollout):
    name, pair = f"{trainer}+{rollout}", (TRAINERS[trainer], ROLLOUTS[rollout])
    if missing := [package for one in pair for package in one.missing()]:
        report.runs[name] = {"skipped": f"not installed: {', '.join(missing)}"}
        report.write()
        pytest.skip(report.runs[name]["skipped"])
    changes = [*SMALL, *(change for one in pair for change in one.overrides)]
    report.runs[name] = {"failed": "the training did not end"}
    report.write()
    arguments = ["--config-dir", str(RECIPE.parent), "--config-name", RECIPE.stem]
    command = [sys.executable, "-m", "verl_agent.commands.train", *arguments, *changes]
    trace = tmp_path / "memory.txt"
    with sampled_memory(trace):
        subprocess.run([*command, f"trainer.default_local_dir={tmp_path}/run"], cwd=ROOT, check=True)
    config = recipe(RECIPE, *changes)
    OmegaConf.resolve(config)
    config.actor_rollout_ref.model.path = resolve_model("smollm2-135m")
    card_gb = import_module("torch").cuda.get_device_properties(0).total_memory / 1e9
    steps = read_metrics(sorted((tmp_path / "run").glob("metrics/*.jsonl")))
    entry = summarize(steps, parse_trace(trace.read_text()), estimated(config, card_gb))
    report.runs[name] = entry
    report.write()
    assert sorted(steps) == [1, 2]
    assert all(step["training/rollout_probs_diff_mean"] <= 0.01 for step in steps.values())
    engine_gb = config.actor_rollout_ref.rollout.gpu_memory_utilization * card_gb
    assert entry["released_gb"] >= 0.5 * engine_gb  # the engine slept during the update, and woke up
    assert entry["peak_gb"] <= 1.25 * max(entry["estimated"].values())
