"""Tests of verl's estimators with lost episodes, observations and split rows; test_gradients.py has their equations."""

import pytest
import torch
from torch import Tensor
from verl.protocol import DataProto

from tests.support.estimators import outcome_advantages
from tests.support.letters import LOST, SHORT, WON
from verl_agent.rollout.tokens import Segment

GROUP = [("a", WON, 1.0), ("a", LOST, 0.0), ("a", SHORT, 0.0)]


def with_last_observation(segment: Segment) -> Segment:
    """Return the segment with two more tokens that the model did not write."""
    return Segment(segment.prompt_ids, [*segment.response_ids, 9, 9], [*segment.response_mask, 0, 0], None)


def on_written_tokens(data: DataProto) -> list[Tensor]:
    """Return the advantages of each row on the tokens that the model wrote."""
    return [row[mask.bool()] for row, mask in zip(data.batch["advantages"], data.batch["response_mask"], strict=True)]


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


def test_segments_of_an_episode_share_the_advantage_of_the_whole_episode():
    """An agent that edits its context makes several rows of an episode; GRPO must not count them as episodes."""
    whole = on_written_tokens(outcome_advantages("grpo", GROUP))
    rows = [("a", SHORT, 1.0), ("a", LOST, 1.0), ("a", WON, 1.0), *GROUP[1:]]
    keys = ["a_0_0", "a_0_1", "a_0_2", "a_1_0", "a_2_0"]
    *won, lost, short = on_written_tokens(outcome_advantages("grpo", rows, keys=keys))
    assert all(torch.equal(row, whole[0][0].expand(len(row))) for row in won)
    assert torch.equal(lost, whole[1]) and torch.equal(short, whole[2])
