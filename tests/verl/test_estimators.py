"""The outcome of an episode reaches what the model wrote, under every estimator that we offer.

The reference's PPO and REINFORCE++ see no outcome at all (fault 1): it lies on an observation, which is masked.
"""

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput
from verl.protocol import DataProto
from verl.trainer.config import AlgoConfig
from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories

from tests.support.letters import END, LOST, SHORT, WON
from verl_agent.rollout.tokens import Segment

ESTIMATORS = ("gae", "grpo", "rloo", "reinforce_plus_plus")


def with_the_last_observation(segment: Segment) -> Segment:
    """As the reference builds it: the reward falls on a token that the model did not write."""
    return Segment(segment.prompt_ids, [*segment.response_ids, 9, 9], [*segment.response_mask, 0, 0], None)


def advantages(
    estimator: str,
    rows: list[tuple[str, Segment, float]],
    values_BT: Tensor | None = None,
    gamma: float = 1.0,
    lam: float = 1.0,
    keys: list[str] | None = None,
) -> DataProto:
    """Advantages from the function that verl's V1 trainer calls, on tensors as it builds them.

    Args:
        estimator: `algorithm.adv_estimator`.
        rows: group, segment and reward of each episode.
        values_BT: float `(B, T)`, the critic's values; zero if left out.
        gamma: discount a token.
        lam: of GAE.
        keys: of the rows, `<group>_<episode>_<part>`; one row an episode if left out.
    """
    outputs = [
        AgentLoopOutput(
            prompt_ids=segment.prompt_ids,
            response_ids=segment.response_ids,
            response_mask=segment.response_mask,
            reward_score=reward,
            metrics=AgentLoopMetrics(),
        ).as_dict()
        for _, segment, reward in rows
    ]
    mask_BT, rewards_BT = (
        pad_sequence([output[name] for output in outputs], batch_first=True) for name in ("response_mask", "rm_scores")
    )
    data = DataProto.from_dict(
        {
            "response_mask": mask_BT,
            "token_level_rewards": rewards_BT,
            "values": torch.zeros_like(rewards_BT) if values_BT is None else values_BT,
        },
        non_tensors={"uid": np.array([group for group, _, _ in rows], dtype=object)},
    )
    keys = keys or [f"{group}_{place}_0" for place, (group, _, _) in enumerate(rows)]
    config = AlgoConfig(adv_estimator=estimator, gamma=gamma, lam=lam)
    return compute_advantage_for_multi_trajectories(data, keys, estimator, gamma, lam, config=config)


def on_written_tokens(data: DataProto) -> list[Tensor]:
    """Advantages of each episode where the loss looks."""
    return [row[mask.bool()] for row, mask in zip(data.batch["advantages"], data.batch["response_mask"], strict=True)]


GROUP = [("a", WON, 1.0), ("a", LOST, 0.0), ("a", SHORT, 0.0)]


@pytest.mark.parametrize("segment", [WON, LOST, SHORT])
def test_the_last_observation_is_left_out_of_the_sample(segment):
    assert (segment.response_ids[-1], segment.response_mask[-1]) == (END, 1)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_the_outcome_moves_every_token_that_the_model_wrote(estimator):
    won, lost, short = on_written_tokens(advantages(estimator, GROUP))
    assert [len(row) for row in (won, lost, short)] == [6, 10, 5]
    assert (won > 0).all()
    assert (lost < 0).all()
    assert (short < 0).all()


@pytest.mark.parametrize("estimator", ["grpo", "rloo", "reinforce_plus_plus"])
def test_nothing_falls_on_observations_and_padding(estimator):
    """GAE is not among them: verl whitens every position, and leaves it to the loss to look at the mask."""
    data = advantages(estimator, GROUP)
    assert (data.batch["response_mask"] == 0).sum() > 0
    assert (data.batch["advantages"][data.batch["response_mask"] == 0] == 0).all()


def test_gae_returns_are_the_outcome_discounted_over_written_tokens():
    """With values of 0 and lambda 1 a return is gamma to the number of written tokens that follow, and no others."""
    data = advantages("gae", GROUP, gamma=0.5)
    mask_BT, returns_BT = data.batch["response_mask"], data.batch["returns"]
    assert returns_BT[0][mask_BT[0].bool()].tolist() == [0.5**5, 0.5**4, 0.5**3, 0.5**2, 0.5, 1.0]
    assert (returns_BT[1:][mask_BT[1:].bool()] == 0).all()


def test_gae_skips_what_the_critic_says_of_observations():
    """Returns by hand for 2 written tokens, 3 of an observation, 2 written: values 0.4, 0.2, then 0.6, 0.8."""
    segment = Segment([1], [5, END, 7, 7, 7, 6, END], [1, 1, 0, 0, 0, 1, 1], None)
    values_BT = torch.tensor([[0.4, 0.2, 50.0, 60.0, 70.0, 0.6, 0.8]])
    data = advantages("gae", [("a", segment, 1.0)], values_BT, gamma=1.0, lam=0.5)
    last = 1.0 - 0.8  # reward minus value; before it: the next written value minus this one, plus half of what follows
    third = 0.8 - 0.6 + 0.5 * last
    second = 0.6 - 0.2 + 0.5 * third
    first = 0.2 - 0.4 + 0.5 * second
    mask_BT = data.batch["response_mask"].bool()
    unwhitened = (data.batch["returns"] - values_BT)[mask_BT].tolist()
    assert unwhitened == pytest.approx([first, second, third, last])


@pytest.mark.parametrize(
    ("estimator", "lost"), [("gae", True), ("reinforce_plus_plus", True), ("grpo", False), ("rloo", False)]
)
def test_a_reward_on_an_observation_is_lost(estimator, lost):
    """Verl 0.9.1, trainer/ppo/core_algos.py: the trap that `EpisodeTokens.segment` avoids. Not wished for, but so."""
    rows = [(group, with_the_last_observation(segment), reward) for group, segment, reward in GROUP]
    assert all((row == 0).all() for row in on_written_tokens(advantages(estimator, rows))) is lost


@pytest.mark.parametrize(("estimator", "by_hand"), [("grpo", [1.1547, -0.5774, -0.5774]), ("rloo", [1.0, -0.5, -0.5])])
def test_an_episode_that_is_left_out_leaves_the_statistics_of_the_smaller_group(estimator, by_hand):
    """Of a group of four, whose fourth failed; another group in the batch does not matter."""
    survivors = on_written_tokens(advantages(estimator, [*GROUP, ("b", SHORT, 1.0), ("b", LOST, 0.5)]))[:3]
    assert [row[0].item() for row in survivors] == pytest.approx(by_hand, abs=1e-4)
    assert all((row == row[0]).all() for row in survivors)


@pytest.mark.parametrize(("estimator", "by_hand"), [("grpo", [1.5, -0.5, -0.5]), ("rloo", [1.0, -0.3333, -0.3333])])
def test_a_failed_episode_as_a_row_of_zeros_would_shift_its_group(estimator, by_hand):
    """The reference keeps a failed episode with reward 0 (fault 4); that all its tokens are masked does not help."""
    failed = ("a", Segment([1], [5, 6], [0, 0], None), 0.0)
    shifted = on_written_tokens(advantages(estimator, [*GROUP, failed]))[:3]
    assert [row[0].item() for row in shifted] == pytest.approx(by_hand, abs=1e-4)


def test_the_samples_of_one_episode_share_the_advantage_that_it_has_as_one():
    """An edited context makes several samples of an episode; GRPO must not take them for episodes."""
    whole = on_written_tokens(advantages("grpo", GROUP))
    parts = [("a", SHORT, 1.0), ("a", LOST, 1.0), ("a", WON, 1.0), *GROUP[1:]]
    keys = ["a_0_0", "a_0_1", "a_0_2", "a_1_0", "a_2_0"]
    *won, lost, short = on_written_tokens(advantages("grpo", parts, keys=keys))
    assert all(torch.equal(row, whole[0][0].expand(len(row))) for row in won)
    assert torch.equal(lost, whole[1]) and torch.equal(short, whole[2])
