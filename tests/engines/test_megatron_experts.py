"""Experts of the rollout, replayed in verl's Megatron engine on the CPU: a whole run, and an update."""

from pathlib import Path

import pytest

from tests.bench.experts import measure_in_process
from tests.support.models import write_byte_tokenizer, write_qwen3_moe
from tests.support.training_runs import prepare, run_to_end
from verl_agent.trace.metrics_log import read_metrics

TEXTS = ["Guess a whole number from 1 to 12. Higher. Lower."]
REPLAY = [
    "model_engine=megatron",
    "actor_rollout_ref.actor.megatron.dtype=float32",
    "actor_rollout_ref.actor.megatron.router_replay.mode=R3",
    "actor_rollout_ref.rollout.enable_rollout_routing_replay=true",
]

pytestmark = [pytest.mark.engines, pytest.mark.slow, pytest.mark.timeout(1800)]


def test_a_run_replays_the_experts_of_each_turn_and_sends_the_experts_weights_to_the_engine(tmp_path: Path) -> None:
    """Both sides compute in float32, so experts of another token would change the log-probs."""
    mixed = "~actor_rollout_ref.actor.fsdp_config"
    overrides = ["algorithm.rollout_correction.bypass_mode=false", "trainer.total_training_steps=3", mixed]
    command = prepare(tmp_path, [*REPLAY, *overrides])
    write_qwen3_moe(tmp_path / "model", write_byte_tokenizer(tmp_path / "model", TEXTS, vocabulary=300), layers=2)
    run_to_end(tmp_path, command)
    logged = read_metrics(sorted((tmp_path / "run").glob("metrics/*.jsonl")))
    gaps = {step: row["training/rollout_probs_diff_mean"] for step, row in logged.items() if step}
    assert list(gaps) == [1, 2, 3] and max(gaps.values()) < 1e-4, gaps
    assert all(row["actor/grad_norm"] > 0 for step, row in logged.items() if step)


def test_replayed_experts_lower_the_differences_of_an_update() -> None:
    found = measure_in_process(layers=2)
    assert 0.01 < found.other < 0.5
    assert found.log_probs[1] < found.log_probs[0] / 2
    assert found.gradients[1] < found.gradients[0] / 4
