"""Replaying the experts of the rollout brings log-probs and gradient of an update closer to it."""

from tests.bench.experts import measure


def test_replayed_experts_lower_the_differences():
    found = measure(layers=2)
    assert 0.01 < found.other < 0.5
    assert found.log_probs[1] < found.log_probs[0] / 2
    assert found.gradients[1] < found.gradients[0] / 4
