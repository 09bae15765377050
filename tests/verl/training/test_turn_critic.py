"""Tests of GAE over turns and of bootstrapped rewards, against the definitions written as plain sums."""

import random
from dataclasses import dataclass
from statistics import fmean, stdev

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from verl.trainer.ppo.core_algos import compute_gae_advantage_return, get_adv_estimator_fn

from tests.support.estimators import TurnRow, batch_turns, padded_mask
from verl_agent.config.reward_shaping import RewardShaping
from verl_agent.rollout.tokens import Segment
from verl_agent.training.estimators import turn_advantages, turn_gae
from verl_agent.training.turn_batch import TurnBatch
from verl_agent.training.turns import reply_spans, rewards_on_last_tokens


@dataclass
class Batch:
    """A random batch: episodes of one or two rows, in random order, with a critic's values.

    Attributes:
        rows: rows of the batch.
        firsts: number of each row's first turn.
        values: float `(T,)` of each row.
        truncated: treatment of each row.
    """

    rows: list[TurnRow]
    firsts: list[int]
    values: list[Tensor]
    truncated: list[str]

    def turns(self, row: int) -> list[tuple[int, int]]:
        return reply_spans(torch.tensor(self.rows[row][1].response_mask))


def random_batch(seed: int) -> Batch:
    """Return a batch whose bootstrapped rows usually end with the tokens of the last state."""
    chance, entries = random.Random(seed), []
    for episode in range(chance.randint(1, 6)):
        counts = [chance.randint(1, 4) for _ in range(chance.choice([1, 1, 2]))]
        bootstraps = chance.random() < 0.5
        for number, count in enumerate(counts):
            mask: list[int] = []
            for turn in range(count):
                mask += [0] * (chance.randint(1, 3) if turn else 0) + [1] * chance.randint(1, 4)
            treatment = "bootstrap" if bootstraps and number == len(counts) - 1 else "as_is"
            mask += [0] * chance.randint(0, 3) if treatment == "bootstrap" else []
            segment = Segment([1], [5] * len(mask), mask, None)
            row = (
                f"g{episode % 2}_{episode}_{number}",
                segment,
                [chance.gauss(0, 1) for _ in range(count)],
                ["s"] * count,
            )
            values = torch.tensor([chance.gauss(0, 1) for _ in mask])
            entries.append((row, sum(counts[:number]), values, treatment))
    chance.shuffle(entries)
    return Batch(*map(list, zip(*entries, strict=True)))


def advantages_by_hand(batch: Batch, gamma: float, lam: float) -> list[list[float]]:
    """Return A_k = sum over l of (gamma lam)^l delta_{k+l} of each row's turns, without normalisation."""
    episodes: dict[str, list[tuple[int, int, int, float]]] = {}
    after: dict[str, float] = {}
    for row, (key, _, rewards, _) in enumerate(batch.rows):
        episode = key.rsplit("_", 1)[0]
        for turn, (start, _) in enumerate(batch.turns(row)):
            entry = (batch.firsts[row] + turn, row, turn, rewards[turn] - batch.values[row][start].item())
            episodes.setdefault(episode, []).append(entry)
        if batch.truncated[row] == "bootstrap":
            start, end = batch.turns(row)[-1]
            has_state = len(batch.values[row]) > end + 1  # else there is at most the token after a truncated reply
            after[episode] = batch.values[row][-1 if has_state else start].item()
    result = [[0.0] * len(rewards) for _, _, rewards, _ in batch.rows]
    for episode, entries in episodes.items():
        entries.sort()
        values = [batch.values[row][batch.turns(row)[turn][0]].item() for _, row, turn, _ in entries]
        following = [*values[1:], after.get(episode, 0.0)]
        deltas = [own + gamma * value for (_, _, _, own), value in zip(entries, following, strict=True)]
        for k, (_, row, turn, _) in enumerate(entries):
            result[row][turn] = sum((gamma * lam) ** step * delta for step, delta in enumerate(deltas[k:]))
    return result


@pytest.mark.parametrize("seed", range(20))
def test_turn_gae_equals_the_sum_of_discounted_errors(seed):
    batch, chance = random_batch(seed), random.Random(-seed)
    gamma, lam = chance.choice([1.0, 0.9, 0.3]), chance.choice([1.0, 0.95, 0.0])
    shaping = RewardShaping(turn_gamma=gamma, turn_lam=lam)
    mask_BT = padded_mask(batch.rows)
    with batch_turns(batch.rows, shaping, batch.firsts, batch.values, batch.truncated) as turns:
        plain = turn_advantages(turns, gamma, lam)
        advantages_BT, returns_BT = turn_gae(torch.zeros(mask_BT.shape), mask_BT)
    by_hand = advantages_by_hand(batch, gamma, lam)
    assert plain == pytest.approx([value for row in by_hand for value in row], abs=1e-4)
    every = [
        value
        for row, values in enumerate(by_hand)
        for (start, end), value in zip(batch.turns(row), values, strict=True)
        for _ in range(end - start)
    ]
    mean, deviation = fmean(every), stdev(every) if len(every) > 1 else 0.0
    for row, values in enumerate(by_hand):
        for (start, end), value in zip(batch.turns(row), values, strict=True):
            assert returns_BT[row, start:end].tolist() == pytest.approx(
                [value + batch.values[row][start].item()] * (end - start), abs=1e-4
            )
            if deviation > 1e-3:
                normalised = [(value - mean) / deviation] * (end - start)
                assert advantages_BT[row, start:end].tolist() == pytest.approx(normalised, abs=1e-2)
    assert (advantages_BT[mask_BT == 0] == 0).all() and (returns_BT[mask_BT == 0] == 0).all()


def test_turn_gae_is_registered_with_verl():
    assert get_adv_estimator_fn("turn_gae") is turn_gae


@pytest.mark.parametrize("seed", range(20))
def test_bootstrapped_gae_over_tokens_continues_with_the_value_of_the_last_state(seed):
    """Verl's GAE on the written tokens of a row alone, with one more token after the cut that has the state's value."""
    batch, gamma, lam = random_batch(seed), 0.9, 0.8
    mask_BT, values_BT = padded_mask(batch.rows), pad_sequence(batch.values, batch_first=True)
    with batch_turns(batch.rows, RewardShaping(), batch.firsts, batch.values, batch.truncated) as turns:
        rewards_BT = rewards_on_last_tokens(turns, mask_BT, gamma)
    _, returns_BT = compute_gae_advantage_return(rewards_BT, values_BT, mask_BT, gamma, lam)
    for row, (_, _, rewards, _) in enumerate(batch.rows):
        spans = batch.turns(row)
        written = [token for start, end in spans for token in range(start, end)]
        reward = dict.fromkeys(written, 0.0) | {end - 1: value for (_, end), value in zip(spans, rewards, strict=True)}
        values = [batch.values[row][token].item() for token in written]
        bootstraps = batch.truncated[row] == "bootstrap"
        following = [*values[1:], batch.values[row][-1].item() if bootstraps else 0.0]
        deltas = [
            reward[token] + gamma * after - own for token, own, after in zip(written, values, following, strict=True)
        ]
        for place, token in enumerate(written):
            by_hand = sum((gamma * lam) ** step * delta for step, delta in enumerate(deltas[place:]))
            assert returns_BT[row, token].item() - values[place] == pytest.approx(by_hand, abs=1e-4)


def test_a_critic_of_turns_learns_at_the_first_token_of_each_reply():
    masks = [torch.tensor([1, 1, 0, 0, 1, 1, 1]), torch.tensor([1, 1, 0, 1]), torch.tensor([0])]
    rows = [("a_0_0", Segment([1], [5] * 7, masks[0].tolist(), None), [0.0, 1.0], ["s", "t"])]
    rows.append(("a_1_0", Segment([1], [5] * 4, masks[1].tolist(), None), [0.0, 0.0], ["s", "t"]))
    with batch_turns(rows, RewardShaping()) as turns:
        batch = TurnBatch(turns, masks, [False, True, False], [False, False, True])
    masked = batch.masks_of_first_tokens(dict.fromkeys(("response_mask", "loss_mask"), masks))
    assert [row.tolist() for row in masked["response_mask"]] == [[1, 0, 0, 0, 1, 0, 0], [1, 0, 0, 1], [0]]
    assert [row.tolist() for row in masked["loss_mask"]] == [[1, 0, 0, 0, 1, 0, 0], [1, 0, 0, 1], [0]]
