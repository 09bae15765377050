"""Test how the arms of the in-process benchmark treat truncated episodes."""

import torch
from torch import Tensor

from tests.bench.learning.direct.arms import DISCOUNT, STUDIES, bootstrap, without_truncated
from tests.bench.learning.direct.game import TOKENS, play, tasks


def uniform(tokens_BL: Tensor) -> Tensor:
    return torch.zeros(len(tokens_BL), TOKENS)


def one_turn():
    """Return a batch of one turn, and True for each truncated row; few guesses are right."""
    batch = play(uniform, [item for item in tasks()[:16] for _ in range(8)], 1, seed=1)
    return batch, torch.tensor([episode.truncated for episode in batch.episodes])


def test_bootstrap_adds_the_discounted_value_to_truncated_rows_only():
    batch, truncated_B = one_turn()
    before_BT, value_B = batch.rewards_BT.clone(), torch.arange(len(batch.keys)).float()
    bootstrap(batch, value_B)
    assert 0 < truncated_B.sum() < len(truncated_B)
    added_B = (batch.rewards_BT - before_BT).sum(-1)
    assert torch.allclose(added_B, DISCOUNT * value_B * truncated_B)


def test_leaving_truncated_rows_out_of_the_group_clears_their_mask():
    batch, truncated_B = one_turn()
    without_truncated(batch, None)
    assert torch.equal(batch.mask_BT.any(-1), ~truncated_B)


def test_each_study_of_truncation_compares_the_same_arms_under_both_horizons():
    for estimator in ("grpo", "gae"):
        fixed, growing = (STUDIES[f"truncated_{estimator}_{kind}"] for kind in ("fixed", "growing"))
        assert list(fixed) == list(growing) and next(iter(fixed)) == "as_is"
        assert {arm.horizon.turns_at(1) for arm in growing.values()} == {2}
        assert {arm.horizon.turns_at(100) for arm in (*fixed.values(), *growing.values())} == {6}
