"""Experts of the rollout, replayed in verl's Megatron engine on the CPU: a whole run, and an update."""

from pathlib import Path

import pytest

from tests.bench.experts import measure_in_process
from tests.support.training_runs import train_experts

REPLAY = [
    "model_engine=megatron",
    "actor_rollout_ref.actor.megatron.dtype=float32",
    "actor_rollout_ref.actor.megatron.router_replay.mode=R3",
    "actor_rollout_ref.rollout.enable_rollout_routing_replay=true",
]

pytestmark = [pytest.mark.engines, pytest.mark.slow, pytest.mark.timeout(1800)]


def test_a_run_replays_the_experts_of_each_turn_and_sends_the_experts_weights_to_the_engine(tmp_path: Path) -> None:
    """Both sides compute in float32, so experts of another token would change the log-probs."""
    gaps = train_experts(tmp_path, *REPLAY, "~actor_rollout_ref.actor.fsdp_config")
    assert list(gaps) == [1, 2, 3] and max(gaps.values()) < 1e-4, gaps


def test_replayed_experts_lower_the_differences_of_an_update() -> None:
    found = measure_in_process(layers=2)
    assert 0.01 < found.other < 0.5
    assert found.log_probs[1] < found.log_probs[0] / 2
    assert found.gradients[1] < found.gradients[0] / 4
