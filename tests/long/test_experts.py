"""A random Qwen3-MoE through the whole stack: vLLM's rollout, FSDP2's update, and the transfer of its weights."""

from pathlib import Path

import pytest

from tests.support.models import write_byte_tokenizer, write_qwen3_moe
from tests.support.training_runs import prepare, run_to_end
from verl_agent.trace.metrics_log import read_metrics

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def test_engine_and_trainer_agree_on_a_model_with_experts_after_each_update(tmp_path: Path) -> None:
    """Both compute in float32, so that a token has other experts only where two are almost equal."""
    command = prepare(tmp_path, ["algorithm.rollout_correction.bypass_mode=false", "trainer.total_training_steps=3"])
    texts = ["Guess a whole number from 1 to 12. Higher. Lower."]
    write_qwen3_moe(tmp_path / "model", write_byte_tokenizer(tmp_path / "model", texts, vocabulary=300), layers=2)
    run_to_end(tmp_path, command)
    logged = read_metrics(sorted((tmp_path / "run").glob("metrics/*.jsonl")))
    gaps = {step: row["training/rollout_probs_diff_mean"] for step, row in logged.items() if step}
    print(f"\n{gaps}")  # noqa: T201 - a measurement
    assert list(gaps) == [1, 2, 3] and max(gaps.values()) < 1e-4
    assert all(row["actor/grad_norm"] > 0 for step, row in logged.items() if step)
