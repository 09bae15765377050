"""Turn-level returns and GiGPO, against the papers' equations in plain numbers, and against what they contain."""

from collections.abc import Iterator
from contextlib import contextmanager
from statistics import fmean, stdev

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from verl.protocol import DataProto
from verl.trainer.config import AlgoConfig
from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories

import verl_agent.training.estimators
from tests.support.letters import CUT, LOST, SHORT, WON
from verl_agent.config.reward_shaping import RewardShaping
from verl_agent.rollout.tokens import Segment
from verl_agent.training.turns import BATCH_TURNS, BatchTurns, locate_turns, on_last_tokens, spans

Row = tuple[str, Segment, list[float], list[str]]
"""Key, tokens, turn rewards, anchors."""

ROWS: list[Row] = [
    ("a_0_0", WON, [0.0, 1.0], ["start", "stone"]),
    ("a_1_0", LOST, [0.0, -0.5, 0.25], ["start", "stone", "wall"]),
    ("a_3_0", CUT, [0.0, 0.0], ["start", "hall"]),  # a_2 was left out
    ("b_0_0", SHORT, [0.5], ["start"]),
    ("b_1_0", WON, [0.0, 0.0], ["start", "stone"]),
]
OUTCOMES: list[Row] = [(key, segment, [0.0] * (len(r) - 1) + [sum(r)], anchors) for key, segment, r, anchors in ROWS]


def mask_of(rows: list[Row]) -> Tensor:
    return pad_sequence([torch.tensor(segment.response_mask) for _, segment, _, _ in rows], batch_first=True)


@contextmanager
def turns_of(rows: list[Row], credit: RewardShaping) -> Iterator[None]:
    """As the trainer makes them known."""
    placed = locate_turns(
        [key for key, *_ in rows],
        [torch.tensor(segment.response_mask) for _, segment, _, _ in rows],
        [{"rewards": rewards, "anchors": anchors, "first": 0} for _, _, rewards, anchors in rows],
    )
    token = BATCH_TURNS.set(BatchTurns(placed, credit))
    yield
    BATCH_TURNS.reset(token)


def advantages(estimator: str, rows: list[Row], credit: RewardShaping | None = None, **settings: object) -> DataProto:
    """Through the function that verl's V1 trainer calls."""
    mask_BT = mask_of(rows)
    rewards_BT = torch.zeros(mask_BT.shape)
    for place, (_, segment, rewards, _) in enumerate(rows):
        rewards_BT[place, len(segment.response_ids) - 1] = sum(rewards)
    config = AlgoConfig(adv_estimator=estimator, **settings)
    data = DataProto.from_dict(
        {"response_mask": mask_BT, "token_level_rewards": rewards_BT},
        non_tensors={"uid": np.array([key.split("_")[0] for key, *_ in rows], dtype=object)},
    )
    with turns_of(rows, credit or RewardShaping()):
        return compute_advantage_for_multi_trajectories(
            data,
            [key for key, *_ in rows],
            estimator,
            norm_adv_by_std_in_grpo=config.norm_adv_by_std_in_grpo,
            config=config,
        )


def by_turn(data: DataProto, rows: list[Row], name: str = "advantages") -> list[list[float]]:
    """The value of each turn; all tokens of a turn have the same."""
    out = []
    for place, (_, segment, _, _) in enumerate(rows):
        row_T = data.batch[name][place]
        turns = [row_T[start:end] for start, end in spans(torch.tensor(segment.response_mask))]
        assert all((turn == turn[0]).all() for turn in turns)
        out.append([turn[0].item() for turn in turns])
    return out


def test_returns_count_turns_and_neither_tokens_nor_observations():
    returns = by_turn(advantages("turn_returns", ROWS, RewardShaping(turn_gamma=0.5)), ROWS, "returns")
    assert returns == [[0.5, 1.0], [0.0 + 0.5 * (-0.5 + 0.5 * 0.25), -0.5 + 0.5 * 0.25, 0.25], [0, 0], [0.5], [0, 0]]


def test_turn_returns_are_normalised_over_the_tokens_of_the_batch():
    """By hand: each turn as often as it has tokens."""
    credit = RewardShaping(turn_gamma=0.9)
    returns = by_turn(advantages("turn_returns", ROWS, credit), ROWS, "returns")
    lengths = [[end - start for start, end in spans(torch.tensor(segment.response_mask))] for _, segment, _, _ in ROWS]
    every = [r for rs, ns in zip(returns, lengths, strict=True) for r, n in zip(rs, ns, strict=True) for _ in range(n)]
    expected = [[(r - fmean(every)) / stdev(every) for r in rs] for rs in returns]
    for found, wanted in zip(by_turn(advantages("turn_returns", ROWS, credit), ROWS), expected, strict=True):
        assert found == pytest.approx(wanted, abs=1e-5)


def test_without_discount_outcomes_give_what_reinforce_plus_plus_gives():
    ours, theirs = (advantages(name, OUTCOMES) for name in ("turn_returns", "reinforce_plus_plus"))
    assert torch.allclose(ours.batch["advantages"], theirs.batch["advantages"], atol=1e-6)


def plain_gigpo(rows: list[Row], gamma: float, omega: float, by_std: bool) -> list[list[float]]:
    """A^E + omega A^S, written down from the paper for rows that are whole episodes."""
    groups = [key.split("_")[0] for key, *_ in rows]
    out = []
    for mine, (_, _, rewards, anchors) in zip(groups, rows, strict=True):
        totals = [sum(other) for group, (_, _, other, _) in zip(groups, rows, strict=True) if group == mine]
        episode = (sum(rewards) - fmean(totals)) / (stdev(totals) + 1e-6 if by_std else 1.0)
        values = []
        for turn, anchor in enumerate(anchors):
            same = [
                sum(gamma**later * reward for later, reward in enumerate(other[place:]))
                for group, (_, _, other, states) in zip(groups, rows, strict=True)
                for place, state in enumerate(states)
                if (group, state) == (mine, anchor)
            ]
            own = sum(gamma**later * reward for later, reward in enumerate(rewards[turn:]))
            scale = stdev(same) + 1e-6 if by_std and len(same) > 1 else 1.0
            values.append(episode + omega * ((own - fmean(same)) / scale if len(same) > 1 else 0.0))
        out.append(values)
    return out


@pytest.mark.parametrize("by_std", [True, False])
@pytest.mark.parametrize(("gamma", "omega"), [(0.95, 1.0), (0.5, 0.3), (1.0, 2.0)])
def test_gigpo_is_what_the_paper_says(gamma, omega, by_std):
    data = advantages("gigpo", ROWS, RewardShaping(turn_gamma=gamma, step_weight=omega), norm_adv_by_std_in_grpo=by_std)
    for found, wanted in zip(by_turn(data, ROWS), plain_gigpo(ROWS, gamma, omega, by_std), strict=True):
        assert found == pytest.approx(wanted, abs=1e-5)


def test_gigpo_without_weight_on_steps_is_grpo():
    ours, theirs = advantages("gigpo", ROWS, RewardShaping(step_weight=0.0)), advantages("grpo", ROWS)
    assert torch.allclose(ours.batch["advantages"], theirs.batch["advantages"], atol=1e-5)


def test_states_of_different_tasks_are_not_compared():
    """Both begin with `start`; only group a knows that its first actions differ in what followed."""
    alone = [("a_0_0", WON, [0.0, 1.0], ["start", "x"]), ("b_0_0", WON, [0.0, 0.0], ["start", "x"])]
    assert by_turn(advantages("gigpo", alone), alone) == [[1.0, 1.0], [0.0, 0.0]]


@pytest.mark.parametrize("estimator", ["turn_returns", "gigpo"])
def test_nothing_falls_on_observations_and_padding(estimator):
    data = advantages(estimator, ROWS, RewardShaping(turn_gamma=0.9))
    assert (data.batch["advantages"][mask_of(ROWS) == 0] == 0).all()
    assert (data.batch["advantages"][mask_of(ROWS) == 1] != 0).any()


@pytest.mark.parametrize("estimator", ["turn_returns", "gigpo"])
def test_an_episode_in_pieces_teaches_what_the_whole_one_teaches(estimator):
    """Agents that edit their history are trained on several rows an episode; the later ones begin at turn `first`."""
    whole = advantages(estimator, ROWS, RewardShaping(turn_gamma=0.9), norm_adv_by_std_in_grpo=False)
    first = Segment([1], WON.response_ids[:3], WON.response_mask[:3], None)
    second = Segment([1], WON.response_ids[-3:], WON.response_mask[-3:], None)
    pieces: list[Row] = [("a_0_0", first, [0.0], ["start"]), ("a_0_1", second, [1.0], ["stone"]), *ROWS[1:]]
    mask_BT = mask_of(pieces)
    placed = locate_turns(
        [key for key, *_ in pieces],
        [torch.tensor(segment.response_mask) for _, segment, _, _ in pieces],
        [{"rewards": r, "anchors": a, "first": int(key == "a_0_1")} for key, _, r, a in pieces],
    )
    token = BATCH_TURNS.set(BatchTurns(placed, RewardShaping(turn_gamma=0.9)))
    function = getattr(verl_agent.training.estimators, estimator)
    config = AlgoConfig(norm_adv_by_std_in_grpo=False)
    found, _ = function(torch.zeros(mask_BT.shape), mask_BT, config=config)
    BATCH_TURNS.reset(token)
    assert (found[0, 0], found[1, 0]) == pytest.approx(tuple(by_turn(whole, ROWS)[0]), abs=1e-5)


def test_rows_of_padding_have_no_turns():
    assert locate_turns(["pad1_0_0"], [torch.tensor([0])], [None]) == []


def test_a_row_whose_replies_were_not_counted_is_a_bug():
    with pytest.raises(ValueError, match="row a_0_0 holds 2 replies, its episode counted 1"):
        locate_turns(["a_0_0"], [torch.tensor(WON.response_mask)], [{"rewards": [1.0], "anchors": ["x"], "first": 0}])


def test_another_trainer_is_told_what_is_missing():
    with pytest.raises(RuntimeError, match=r"Set trainer\.v1\.trainer_mode=verl_agent"):
        verl_agent.training.estimators.gigpo(torch.zeros(1, 2), torch.ones(1, 2))


def test_rewards_of_turns_lie_on_the_last_tokens_of_replies():
    """What GAE then sees of an environment that rewards progress."""
    mask_BT = mask_of(ROWS)
    with turns_of(ROWS, RewardShaping()):
        rewards_BT = on_last_tokens(BATCH_TURNS.get().turns, mask_BT)
    assert rewards_BT.sum(dim=1).tolist() == [sum(rewards) for _, _, rewards, _ in ROWS]
    assert (rewards_BT[mask_BT == 0] == 0).all()
    ends = [end - 1 for _, end in spans(torch.tensor(LOST.response_mask))]
    assert rewards_BT[1, ends].tolist() == [0.0, -0.5, 0.25]
