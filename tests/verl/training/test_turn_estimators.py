"""Tests of turn-level returns and GiGPO against the papers' equations."""

from statistics import fmean, stdev

import pytest
import torch
from verl.trainer.config import AlgoConfig

import verl_agent.training.estimators
from tests.support.estimators import TurnRow, batch_turns, padded_mask, turn_advantages, values_by_turn
from tests.support.letters import LOST, SHORT, TRUNCATED, WON
from verl_agent.config.reward_shaping import RewardShaping
from verl_agent.errors import ConfigError
from verl_agent.rollout.tokens import Segment
from verl_agent.training.turn_batch import TurnBatch
from verl_agent.training.turns import BATCH_TURNS, locate_turns, reply_spans, rewards_on_last_tokens

ROWS: list[TurnRow] = [
    ("a_0_0", WON, [0.0, 1.0], ["start", "stone"]),
    ("a_1_0", LOST, [0.0, -0.5, 0.25], ["start", "stone", "wall"]),
    ("a_3_0", TRUNCATED, [0.0, 0.0], ["start", "hall"]),  # a_2 had an environment error
    ("b_0_0", SHORT, [0.5], ["start"]),
    ("b_1_0", WON, [0.0, 0.0], ["start", "stone"]),
]


def test_discount_counts_turns_and_neither_tokens_nor_observations():
    data = turn_advantages("turn_returns", ROWS, RewardShaping(turn_gamma=0.5))
    returns = values_by_turn(data, ROWS, "returns")
    assert returns == [[0.5, 1.0], [0.0 + 0.5 * (-0.5 + 0.5 * 0.25), -0.5 + 0.5 * 0.25, 0.25], [0, 0], [0.5], [0, 0]]


def test_turn_returns_are_normalised_over_the_tokens_of_the_batch():
    """By hand: the statistics count each turn as often as it has tokens."""
    shaping = RewardShaping(turn_gamma=0.9)
    data = turn_advantages("turn_returns", ROWS, shaping)
    returns = values_by_turn(data, ROWS, "returns")
    lengths = [
        [end - start for start, end in reply_spans(torch.tensor(segment.response_mask))] for _, segment, _, _ in ROWS
    ]
    every = [r for rs, ns in zip(returns, lengths, strict=True) for r, n in zip(rs, ns, strict=True) for _ in range(n)]
    expected = [[(r - fmean(every)) / stdev(every) for r in rs] for rs in returns]
    for estimated, by_hand in zip(values_by_turn(data, ROWS), expected, strict=True):
        assert estimated == pytest.approx(by_hand, abs=1e-5)


@pytest.mark.parametrize("reward", [0.7, 1 / 3, 123.4])
@pytest.mark.parametrize("estimator", ["turn_returns", "reinforce_plus_plus"])
def test_equal_returns_of_a_whole_batch_have_no_advantage(estimator, reward):
    """A mean in float32 differs from them by rounding, and verl divides the difference by 1e-4."""
    rows: list[TurnRow] = [(f"a_{n}_0", WON, [0.0, reward], ["start", "stone"]) for n in range(7)]
    data = turn_advantages(estimator, rows)
    assert (data.batch["advantages"] == 0).all()
    assert (data.batch["returns"][padded_mask(rows) == 1] == torch.tensor(reward)).all()


def test_equal_advantages_of_turns_are_zero_too():
    rows: list[TurnRow] = [(f"a_{n}_0", SHORT, [0.7], ["start"]) for n in range(7)]
    values = [torch.zeros(len(SHORT.response_ids)) for _ in rows]
    with batch_turns(rows, RewardShaping(), values=values):
        mask_BT = padded_mask(rows)
        advantages_BT, _ = verl_agent.training.estimators.turn_gae(torch.zeros(mask_BT.shape), mask_BT)
    assert (advantages_BT == 0).all()


def gigpo_by_hand(rows: list[TurnRow], gamma: float, omega: float, by_std: bool) -> list[list[float]]:
    """Return A^E + omega A^S as in the paper, for rows that are whole episodes."""
    groups = [key.split("_")[0] for key, *_ in rows]
    advantages = []
    for own_group, (_, _, rewards, anchors) in zip(groups, rows, strict=True):
        totals = [sum(other) for group, (_, _, other, _) in zip(groups, rows, strict=True) if group == own_group]
        episode = (sum(rewards) - fmean(totals)) / (stdev(totals) + 1e-6 if by_std else 1.0)
        values = []
        for turn, anchor in enumerate(anchors):
            same_state = [
                sum(gamma**later * reward for later, reward in enumerate(other[index:]))
                for group, (_, _, other, states) in zip(groups, rows, strict=True)
                for index, state in enumerate(states)
                if (group, state) == (own_group, anchor)
            ]
            own = sum(gamma**later * reward for later, reward in enumerate(rewards[turn:]))
            scale = stdev(same_state) + 1e-6 if by_std and len(same_state) > 1 else 1.0
            values.append(episode + omega * ((own - fmean(same_state)) / scale if len(same_state) > 1 else 0.0))
        advantages.append(values)
    return advantages


@pytest.mark.parametrize("by_std", [True, False])
@pytest.mark.parametrize(("gamma", "omega"), [(0.95, 1.0), (0.5, 0.3), (1.0, 2.0)])
def test_gigpo_equals_the_equations_of_the_paper(gamma, omega, by_std):
    shaping = RewardShaping(turn_gamma=gamma, step_weight=omega)
    data = turn_advantages("gigpo", ROWS, shaping, norm_adv_by_std_in_grpo=by_std)
    for estimated, by_hand in zip(values_by_turn(data, ROWS), gigpo_by_hand(ROWS, gamma, omega, by_std), strict=True):
        assert estimated == pytest.approx(by_hand, abs=1e-5)


@pytest.mark.parametrize("returns", [[0.1 + 0.2, 0.3], [0.1 * 3, 0.3, 0.3], [1 / 3 + 1 / 3, 2 / 3, 1 - 1 / 3]])
def test_values_that_differ_by_rounding_have_no_advantage_in_their_group(returns):
    relative = verl_agent.training.estimators.relative_to_group(returns, ["a"] * len(returns), True, None)
    assert relative == [0.0] * len(returns)


def test_gigpo_does_not_compare_states_of_different_tasks():
    rows = [("a_0_0", WON, [0.0, 1.0], ["start", "x"]), ("b_0_0", WON, [0.0, 0.0], ["start", "x"])]
    assert values_by_turn(turn_advantages("gigpo", rows), rows) == [[1.0, 1.0], [0.0, 0.0]]


@pytest.mark.parametrize("estimator", ["turn_returns", "gigpo"])
def test_advantages_of_observations_and_padding_are_zero(estimator):
    data = turn_advantages(estimator, ROWS, RewardShaping(turn_gamma=0.9))
    assert (data.batch["advantages"][padded_mask(ROWS) == 0] == 0).all()
    assert (data.batch["advantages"][padded_mask(ROWS) == 1] != 0).any()


@pytest.mark.parametrize("estimator", ["turn_returns", "gigpo"])
def test_segments_of_an_episode_have_the_advantages_of_the_whole_episode(estimator):
    """An agent that edits its context makes several rows of an episode; later rows begin at turn `first`."""
    shaping = RewardShaping(turn_gamma=0.9)
    whole = turn_advantages(estimator, ROWS, shaping, norm_adv_by_std_in_grpo=False)
    first = Segment([1], WON.response_ids[:3], WON.response_mask[:3], None)
    second = Segment([1], WON.response_ids[-3:], WON.response_mask[-3:], None)
    rows: list[TurnRow] = [("a_0_0", first, [0.0], ["start"]), ("a_0_1", second, [1.0], ["stone"]), *ROWS[1:]]
    mask_BT, config = padded_mask(rows), AlgoConfig(norm_adv_by_std_in_grpo=False)
    with batch_turns(rows, shaping, firsts=[int(key == "a_0_1") for key, *_ in rows]):
        estimate = getattr(verl_agent.training.estimators, estimator)
        advantages_BT, _ = estimate(torch.zeros(mask_BT.shape), mask_BT, config=config)
    expected = values_by_turn(whole, ROWS)[0]
    assert (advantages_BT[0, 0], advantages_BT[1, 0]) == pytest.approx(tuple(expected), abs=1e-5)


def test_placed_rewards_need_episodes_of_one_row():
    """The first row of a solved episode would have a return of 0."""
    masks = [torch.tensor([1, 1])] * 2
    fields = [{"rewards": [reward], "anchors": ["s"], "first": first} for first, reward in enumerate((0.0, 1.0))]
    split = TurnBatch(locate_turns(["a_0_0", "a_0_1"], masks, fields), masks, [False] * 2, [False] * 2)
    with pytest.raises(ConfigError, match="takes each row for an episode"):
        split.rewards(1.0)
    assert TurnBatch(split.turns[:1], masks[:1], [False], [False]).rewards(1.0)


def test_padding_rows_have_no_turns():
    assert locate_turns(["pad1_0_0"], [torch.tensor([0])], [None]) == []


def test_row_with_another_number_of_replies_raises_value_error():
    with pytest.raises(ValueError, match="row a_0_0 holds 2 replies, its episode counted 1"):
        locate_turns(["a_0_0"], [torch.tensor(WON.response_mask)], [{"rewards": [1.0], "anchors": ["x"], "first": 0}])


def test_estimator_under_another_trainer_raises_runtime_error_naming_the_setting():
    with pytest.raises(RuntimeError, match=r"Set trainer\.v1\.trainer_mode=verl_agent"):
        verl_agent.training.estimators.gigpo(torch.zeros(1, 2), torch.ones(1, 2))


def test_turn_rewards_are_on_the_last_tokens_of_replies():
    mask_BT = padded_mask(ROWS)
    with batch_turns(ROWS, RewardShaping()):
        rewards_BT = rewards_on_last_tokens(BATCH_TURNS.get().turns, mask_BT)
    assert rewards_BT.sum(dim=1).tolist() == [sum(rewards) for _, _, rewards, _ in ROWS]
    assert (rewards_BT[mask_BT == 0] == 0).all()
    ends = [end - 1 for _, end in reply_spans(torch.tensor(LOST.response_mask))]
    assert rewards_BT[1, ends].tolist() == [0.0, -0.5, 0.25]
