"""Tests of the benchmark's asynchronous rollout in simulated time."""

from dataclasses import replace

import pytest
import torch

from tests.bench.learning.direct.arms import STUDIES
from tests.bench.learning.direct.flight import UPDATE_S, Asynchrony, Flight
from tests.bench.learning.direct.game import LENGTH, TOKENS, tasks
from tests.bench.learning.direct.learner import Learner, log_probs
from tests.bench.learning.direct.model import Transformer

BATCH, STEPS = 4, 6


def policy() -> Transformer:
    torch.manual_seed(0)
    return Transformer(TOKENS, TOKENS, LENGTH)


def steps_of(flight: Flight, warmup: int):
    """Yield the batch of each step; the weights do not change."""
    items = tasks()[::3]
    flight.dispatch(1, items[:warmup], 6)
    for step in range(1, STEPS + 1):
        flight.dispatch(step, items[step * BATCH : (step + 1) * BATCH], 6)
        yield flight.take(step)
        flight.end_update()


@pytest.mark.parametrize(("threshold", "warmup"), [(1, 0), (3, 2)])
def test_each_step_has_whole_groups_and_every_action_its_log_prob(threshold, warmup):
    model, seen = policy(), []
    for batch in steps_of(Flight(model, Asynchrony(threshold), BATCH, 3, seed=1), warmup):
        assert len(batch.keys) == 3 * BATCH and len(set(batch.groups)) == BATCH
        again = log_probs(model, batch.tokens_BL, batch.mask_BT.shape[1]) * batch.mask_BT
        assert torch.allclose(again, batch.old_BT, atol=1e-5)
        assert batch.mask_BT.sum() == sum(len(episode.turns) for episode in batch.episodes)
        seen += [episode.item.id for episode in batch.episodes[::3]]
    assert len(set(seen)) == len(seen) == STEPS * BATCH


def test_staleness_saves_time_and_is_bounded():
    synchronous, partial = (Flight(policy(), Asynchrony(bound), BATCH, 3, seed=1) for bound in (1, 3))
    assert [batch.staleness for batch in steps_of(synchronous, 0)] == [0.0] * STEPS
    staleness = [batch.staleness for batch in steps_of(partial, 2)]
    assert staleness[0] == 0 and 0 < max(staleness) <= 2
    assert STEPS * UPDATE_S < partial.now_s < synchronous.now_s


def test_weights_correct_for_the_weights_that_sampled_an_action():
    """Actions of other weights have a weight other than 1, at most 2; those of the present ones have 1."""
    learner = Learner(replace(STUDIES["staleness"]["staleness_2"], steps=1), seed=1, policy=policy())
    batch = learner._played(1)
    old_BT, weights_BT = learner._corrected(batch)
    assert torch.allclose(weights_BT, batch.mask_BT, atol=1e-4) and torch.allclose(old_BT, batch.old_BT, atol=1e-5)
    learner.update(batch, 1)
    old_BT, weights_BT = learner._corrected(batch)
    expected = ((old_BT - batch.old_BT).exp() * batch.mask_BT).clamp(max=2.0)
    assert torch.allclose(weights_BT, expected) and not torch.allclose(weights_BT, batch.mask_BT, atol=1e-3)
