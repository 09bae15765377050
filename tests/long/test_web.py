"""Test of one training step with a pretrained model on the embedded shop, through the recipe's script."""

import os
import subprocess
import sys

import pytest

from tests import ROOT
from verl_agent.trace.metrics_log import read_metrics
from verl_agent.trace.record import to_episode
from verl_agent.trace.record_files import read_records

TASKS, SAMPLES, TURNS = 2, 2, 2
SMALL = (
    "actor_rollout_ref.model.path=smollm2-135m",
    f"data.train_batch_size={TASKS}",
    f"actor_rollout_ref.rollout.n={SAMPLES}",
    f"horizon.max_turns=[{TURNS}]",
    "episode.on_truncated_turn=play",  # a model without SFT rarely ends its reply
    "trainer.total_training_steps=1",
    "trainer.val_before_train=false",
    "trainer.test_freq=-1",
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


def test_one_training_step_on_the_shop(sites, tmp_path):
    variables = {**os.environ, "VIRTUAL_ENV": sys.prefix, "VERL_AGENT_SITES": str(sites.home.folder)}
    script = ["bash", str(ROOT / "recipes/webarena/train.sh"), "--config-name", "grpo_shop_cpu"]
    subprocess.run([*script, *SMALL, f"trainer.default_local_dir={tmp_path}"], env=variables, check=True)
    records = list(read_records(tmp_path / "episodes"))
    assert len(records) == TASKS * SAMPLES
    assert len({record["group"] for record in records}) == TASKS
    for record in records:
        assert to_episode(record).valid, record["error"]
        assert "RootWebArea 'All products | Fernhill" in record["messages"][1]["content"]
    metrics = read_metrics(sorted(tmp_path.glob("metrics/*.jsonl")))[1]
    assert 1 <= metrics["episode/turns_mean"] <= TURNS
    assert "actor/grad_norm" in metrics
    assert (tmp_path / "global_step_1").is_dir()
    assert not list(sites.home.copies.iterdir())
