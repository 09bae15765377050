"""Test that the GPU recipe trains two steps on one GPU, and that the engine has the trained weights."""

import subprocess
import sys
from pathlib import Path

import pytest

from verl_agent.trace.metrics_log import read_metrics

ROOT = Path(__file__).parents[2]
SMALL = [
    "actor_rollout_ref.model.path=smollm2-135m",
    "env.options.prompt=short",
    "env.options.distractors=0",
    "episode.max_tokens_per_turn=48",
    "data.train_batch_size=8",
    "data.max_prompt_length=512",
    "data.max_response_length=1024",
    "trainer.n_gpus_per_node=1",
    "trainer.total_training_steps=2",
    "trainer.test_freq=-1",
]

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(1800)]


def test_two_training_steps_on_one_gpu(tmp_path: Path):
    config = ["--config-dir", str(ROOT / "recipes/textcraft"), "--config-name", "grpo"]
    command = [
        sys.executable,
        "-m",
        "verl_agent.commands.train",
        *config,
        *SMALL,
        f"trainer.default_local_dir={tmp_path}",
    ]
    subprocess.run(command, cwd=ROOT, check=True)
    metrics = read_metrics(sorted(tmp_path.glob("metrics/*.jsonl")))
    assert sorted(metrics) == [1, 2]
    assert all(step["training/rollout_probs_diff_mean"] <= 0.01 for step in metrics.values())
