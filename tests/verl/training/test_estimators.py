"""Tests that the return of an episode reaches the tokens that the model wrote, with every estimator of verl.

An implementation that puts the return on the last observation loses it under PPO and REINFORCE++, because that token
is masked.
"""

import pytest
import torch
from torch import Tensor
from verl.protocol import DataProto

from tests.support.estimators import outcome_advantages
from tests.support.letters import END, LOST, SHORT, WON
from verl_agent.rollout.tokens import Segment

ESTIMATORS = ("gae", "grpo", "rloo", "reinforce_plus_plus")
GROUP = [("a", WON, 1.0), ("a", LOST, 0.0), ("a", SHORT, 0.0)]


def with_last_observation(segment: Segment) -> Segment:
    """Return the segment with two more tokens that the model did not write."""
    return Segment(segment.prompt_ids, [*segment.response_ids, 9, 9], [*segment.response_mask, 0, 0], None)


def on_written_tokens(data: DataProto) -> list[Tensor]:
    """Return the advantages of each row on the tokens that the model wrote."""
    return [row[mask.bool()] for row, mask in zip(data.batch["advantages"], data.batch["response_mask"], strict=True)]


@pytest.mark.parametrize("segment", [WON, LOST, SHORT])
def test_segment_ends_with_the_last_reply(segment):
    assert (segment.response_ids[-1], segment.response_mask[-1]) == (END, 1)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_return_moves_every_token_that_the_model_wrote(estimator):
    won, lost, short = on_written_tokens(outcome_advantages(estimator, GROUP))
    assert [len(row) for row in (won, lost, short)] == [6, 10, 5]
    assert (won > 0).all()
    assert (lost < 0).all()
    assert (short < 0).all()


@pytest.mark.parametrize("estimator", ["grpo", "rloo", "reinforce_plus_plus"])
def test_advantages_of_observations_and_padding_are_zero(estimator):
    """GAE is not tested here: verl whitens every position and leaves the mask to the loss."""
    data = outcome_advantages(estimator, GROUP)
    assert (data.batch["response_mask"] == 0).sum() > 0
    assert (data.batch["advantages"][data.batch["response_mask"] == 0] == 0).all()


def test_gae_discounts_returns_over_written_tokens_only():
    """With values of 0 and lambda 1 a return is gamma to the number of written tokens that follow."""
    data = outcome_advantages("gae", GROUP, gamma=0.5)
    mask_BT, returns_BT = data.batch["response_mask"], data.batch["returns"]
    assert returns_BT[0][mask_BT[0].bool()].tolist() == [0.5**5, 0.5**4, 0.5**3, 0.5**2, 0.5, 1.0]
    assert (returns_BT[1:][mask_BT[1:].bool()] == 0).all()


def test_gae_skips_the_values_of_observations():
    """Returns by hand for 2 written tokens, 3 of an observation, 2 written: values 0.4, 0.2, then 0.6, 0.8."""
    segment = Segment([1], [5, END, 7, 7, 7, 6, END], [1, 1, 0, 0, 0, 1, 1], None)
    values_BT = torch.tensor([[0.4, 0.2, 50.0, 60.0, 70.0, 0.6, 0.8]])
    data = outcome_advantages("gae", [("a", segment, 1.0)], values_BT, gamma=1.0, lam=0.5)
    last = (
        1.0 - 0.8
    )  # reward minus value; earlier ones: next value minus this one, plus lambda times the next advantage
    third = 0.8 - 0.6 + 0.5 * last
    second = 0.6 - 0.2 + 0.5 * third
    first = 0.2 - 0.4 + 0.5 * second
    mask_BT = data.batch["response_mask"].bool()
    unwhitened = (data.batch["returns"] - values_BT)[mask_BT].tolist()
    assert unwhitened == pytest.approx([first, second, third, last])


@pytest.mark.parametrize(
    ("estimator", "lost"), [("gae", True), ("reinforce_plus_plus", True), ("grpo", False), ("rloo", False)]
)
def test_verl_loses_a_reward_on_an_observation(estimator, lost):
    """Behaviour of verl 0.9.1, trainer/ppo/core_algos.py, that `EpisodeTokens.segments` avoids."""
    rows = [(group, with_last_observation(segment), reward) for group, segment, reward in GROUP]
    assert all((row == 0).all() for row in on_written_tokens(outcome_advantages(estimator, rows))) is lost


@pytest.mark.parametrize(("estimator", "by_hand"), [("grpo", [1.1547, -0.5774, -0.5774]), ("rloo", [1.0, -0.5, -0.5])])
def test_dropped_episode_leaves_the_statistics_of_the_smaller_group(estimator, by_hand):
    """The fourth episode of the group has an environment error; other groups of the batch have no effect."""
    valid = on_written_tokens(outcome_advantages(estimator, [*GROUP, ("b", SHORT, 1.0), ("b", LOST, 0.5)]))[:3]
    assert [row[0].item() for row in valid] == pytest.approx(by_hand, abs=1e-4)
    assert all((row == row[0]).all() for row in valid)


@pytest.mark.parametrize(("estimator", "by_hand"), [("grpo", [1.5, -0.5, -0.5]), ("rloo", [1.0, -0.3333, -0.3333])])
def test_failed_episode_as_a_masked_row_of_reward_zero_would_shift_its_group(estimator, by_hand):
    failed = ("a", Segment([1], [5, 6], [0, 0], None), 0.0)
    shifted = on_written_tokens(outcome_advantages(estimator, [*GROUP, failed]))[:3]
    assert [row[0].item() for row in shifted] == pytest.approx(by_hand, abs=1e-4)


def test_segments_of_an_episode_share_the_advantage_of_the_whole_episode():
    """An agent that edits its context makes several rows of an episode; GRPO must not count them as episodes."""
    whole = on_written_tokens(outcome_advantages("grpo", GROUP))
    rows = [("a", SHORT, 1.0), ("a", LOST, 1.0), ("a", WON, 1.0), *GROUP[1:]]
    keys = ["a_0_0", "a_0_1", "a_0_2", "a_1_0", "a_2_0"]
    *won, lost, short = on_written_tokens(outcome_advantages("grpo", rows, keys=keys))
    assert all(torch.equal(row, whole[0][0].expand(len(row))) for row in won)
    assert torch.equal(lost, whole[1]) and torch.equal(short, whole[2])
