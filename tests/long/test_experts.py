"""A random Qwen3-MoE through the whole stack: vLLM's rollout, FSDP2's update, and the transfer of its weights."""

from pathlib import Path

import pytest

from tests.support.training_runs import train_experts

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def test_engine_and_trainer_agree_on_a_model_with_experts_after_each_update(tmp_path: Path) -> None:
    """Both compute in float32, so that a token has other experts only where two are almost equal."""
    gaps = train_experts(tmp_path)
    print(f"\n{gaps}")  # noqa: T201 - a measurement
    assert list(gaps) == [1, 2, 3] and max(gaps.values()) < 1e-4
