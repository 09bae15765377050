"""Check of an advantage estimator, on random batches that reach it as in training."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence
from verl.protocol import DataProto
from verl.trainer.config import AlgoConfig
from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories

from verl_agent.config.algorithms import find_estimator
from verl_agent.config.reward_shaping import RewardShaping
from verl_agent.envs.testing.check import Report
from verl_agent.envs.testing.violation import ContractViolation, boundary
from verl_agent.returns import sum_rewards
from verl_agent.training.own_estimators import EstimatorBatch, register
from verl_agent.training.turns import BATCH_TURNS, BatchTurns, locate_turns, reply_spans, rewards_on_last_tokens

TOLERANCE = 1e-4
"""Largest difference between two results that count as equal; sums in another order differ by rounding."""
BATCHES = 5
PADDING = "padding"
OTHER_NAMES = str.maketrans("0123456789", "9876543210")
"""Changes the names of groups and episodes, and their alphabetical order; done twice it changes nothing."""
Result = Mapping[tuple[str, int], Tensor]
"""Advantages of the tokens of each turn, float `(T,)`, by episode and number of the turn."""


@dataclass(frozen=True, slots=True)
class CheckRow:
    """Row of a batch: an episode or a part of it."""

    key: str
    """`<group>_<sample>_<segment>`, as verl has it."""
    mask_T: Tensor
    values_T: Tensor
    rewards: Sequence[float] = ()
    anchors: Sequence[str] = ()
    first: int = 0


PADDING_ROWS = [CheckRow(f"{PADDING}{row}_0_0", torch.zeros(2, dtype=torch.int64), torch.zeros(2)) for row in range(2)]
"""Rows with which verl fills a batch up."""


def random_rows(seed: int, sizes: Sequence[int], most_turns: int = 4) -> list[CheckRow]:
    """Return episodes with random lengths, rewards, states and values; one group for each of `sizes`."""
    draw, rows = random.Random(seed), []
    for group, size in enumerate(sizes):
        for sample in range(size):
            mask, turns = list[int](), draw.randint(1, most_turns)
            for _ in range(turns):
                mask += [0] * (draw.randint(1, 3) if mask else 0) + [1] * draw.randint(1, 4)
            values_T = torch.tensor([draw.gauss(0, 1) for _ in mask])
            rewards = [draw.choice((0.0, 0.0, 0.5, 1.0, -0.25)) for _ in range(turns)]
            anchors = [draw.choice("abc") for _ in range(turns)]
            rows.append(CheckRow(f"{group}{seed}_{sample}_0", torch.tensor(mask), values_T, rewards, anchors))
    return rows


def split_episodes(rows: Sequence[CheckRow]) -> list[CheckRow]:
    """Return the rows of the same episodes where the context is cut after the first turn of each."""
    parts = []
    for row in rows:
        spans, episode = reply_spans(row.mask_T), row.key.rpartition("_")[0]
        for segment, (begin, end) in enumerate([(0, 1), (1, len(spans))][: len(spans)]):
            of_part, turns = slice(spans[begin][0], spans[end - 1][1]), slice(begin, end)
            data = (row.values_T[of_part], row.rewards[turns], row.anchors[turns], begin)
            parts.append(CheckRow(f"{episode}_{segment}", row.mask_T[of_part], *data))
    return parts


def estimated_advantages(
    name: str,
    shaping: RewardShaping,
    rows: Sequence[CheckRow],
    columns: int = 0,
    valued: bool = False,
    by: str = "function",
) -> Result:
    """Return the advantages of a batch, computed by verl's function for the trainer.

    Args:
        name: registered name.
        shaping: section `credit`.
        rows: rows of the batch.
        columns: columns of padding at the right.
        valued: give turns values, although the estimator has no critic.
        by: `function`, or `reference` for that of the estimator.
    """
    estimator, keys = find_estimator(name), [row.key for row in rows]
    masks, values = [row.mask_T for row in rows], [row.values_T for row in rows]
    fields = [
        {"rewards": row.rewards, "anchors": row.anchors, "first": row.first} if row.rewards else None for row in rows
    ]
    turns = locate_turns(keys, masks, fields, values if estimator.critic or valued else None)
    mask_BT, values_BT = (pad(pad_sequence(one, batch_first=True), (0, columns)) for one in (masks, values))
    batch = BatchTurns(turns, shaping, values if estimator.critic else None)
    tensors = {"response_mask": mask_BT, "token_level_rewards": rewards_on_last_tokens(turns, mask_BT)}
    data = DataProto.from_dict(
        tensors | ({"values": values_BT} if estimator.critic else {}),
        non_tensors={"uid": np.array([key.rsplit("_", 2)[0] for key in keys], dtype=object)},
    )
    token, call = BATCH_TURNS.set(batch), f"{name}({len(rows)} rows)"
    try:
        with boundary(call, "It must return finite advantages for every batch of the contract."):
            if by == "reference" and estimator.reference:
                found = estimator.reference(EstimatorBatch(turns, mask_BT, batch.values, shaping), **shaping.options)
                found_BT = found[0] if isinstance(found, tuple) else found
            else:
                config = AlgoConfig(adv_estimator=name)
                found_BT = compute_advantage_for_multi_trajectories(data, keys, name, config=config).batch["advantages"]
    finally:
        BATCH_TURNS.reset(token)
    result = {(turn.episode, turn.number): found_BT[turn.row, turn.start : turn.end] for turn in turns}
    if bad := [turn for turn, value in result.items() if not value.isfinite().all()]:
        raise ContractViolation(call, f"is not finite for turn {bad[0][1]} of {bad[0][0]}", "Guard divisions by 0.")
    return result


def check_estimator(
    name: str, options: Mapping[str, Any] | None = None, on_line: Callable[[str], None] = lambda line: None
) -> Report:
    """Check an estimator against the contract of `EstimatorBatch`; built-in ones keep it, too.

    Args:
        name: registered name.
        options: its keyword arguments, as in `credit.options`.
        on_line: receives each line of the report as soon as it is known.

    Raises:
        ConfigError: the name is not registered.
    """
    register(name)
    own, report = find_estimator(name), Report(on_line=on_line)
    run = partial(estimated_advantages, name, RewardShaping(options=options or {}))
    least = 2 if own.grouped else 1
    batches = [random_rows(seed, sizes=(4, least, 3)) for seed in range(BATCHES)]
    if own.rewards == "episode":  # `credit.place` has no effect then: the return is on the last turn
        batches = [
            [replace(row, rewards=[0.0] * (len(row.rewards) - 1) + [sum_rewards(row.rewards)]) for row in rows]
            for rows in batches
        ]
    if not report.run("results have the right shape and are finite", partial(_check_results, run, batches, least)):
        return report

    def same(title: str, changed: Callable[[list[CheckRow]], Result], advice: str) -> None:
        def compare() -> None:
            for rows in batches:
                _compare(name, run(rows), changed(rows), advice)

        report.run(title, compare)

    same("the same batch has the same result", run, "Keep no state, and draw no random numbers.")
    shuffled = lambda rows: run(random.Random(0).sample(rows, len(rows)))  # noqa: E731
    same("the order of rows does not matter", shuffled, "Use turn.episode and turn.group instead of positions.")
    same("names do not matter", partial(_renamed, run), "Use names only to tell groups and episodes apart.")
    padded = lambda rows: run([*rows, *PADDING_ROWS], columns=3)  # noqa: E731
    same("padding does not matter", padded, "Use batch.mask_BT in means, and count turns instead of rows.")
    if own.several_rows:
        advice = "Sum over turn.episode instead of rows; or declare several_rows=False, which refuses such agents."
        same("an episode may have several rows", lambda rows: run(split_episodes(rows)), advice)
    else:
        report.note("episodes of several rows are refused: agents that edit their context cannot be trained.")
    if own.critic is None:
        advice = "Without a critic turn.value is 0. Declare Estimator(critic='turn') or 'token'."
        same("values need a critic", partial(run, valued=True), advice)
    if own.uniform_is_zero:
        report.run("equal returns have advantage 0", partial(_check_uniform, name, run))
    report.run("a better outcome is not punished", partial(_check_direction, name, run, batches))
    if own.reference is not None:
        same("the reference agrees", partial(run, by="reference"), "Correct the function or its reference.")
    else:
        report.note("no reference: with Estimator(reference=...) the check compares with a second implementation.")
    return report


def _check_results(run: Callable[..., Result], batches: Sequence[list[CheckRow]], least: int) -> str:
    """Estimate common batches and extreme ones: single turns, smallest groups, equal returns, one group."""
    small = [random_rows(seed, sizes=(least, least), most_turns=1) for seed in range(BATCHES)]
    equal = [[replace(row, rewards=[0.5] * len(row.rewards)) for row in rows] for rows in batches]
    every = [*batches, *small, *equal, small[0][:least]]
    for rows in every:
        run(rows)
    return f"{len(every)} batches"


def _check_uniform(name: str, run: Callable[..., Result]) -> None:
    rows = random_rows(0, sizes=(3, 4))
    rows[:3] = [replace(row, rewards=[0.0] * (len(row.rewards) - 1) + [0.7]) for row in rows[:3]]
    result = run(rows)
    expected = {turn: torch.zeros_like(value) for turn, value in result.items()} | dict(run(rows[3:]))
    _compare(name, expected, result, "Declare uniform_is_zero=False.")


def _check_direction(name: str, run: Callable[..., Result], batches: Sequence[list[CheckRow]]) -> None:
    for row, *others in batches:
        better, episode = replace(row, rewards=[*row.rewards[:-1], row.rewards[-1] + 1.0]), row.key.rpartition("_")[0]
        results = [run([one, *others]).items() for one in (row, better)]
        before, after = (sum(value.sum().item() for turn, value in one if turn[0] == episode) for one in results)
        if after < before - TOLERANCE:
            got = f"has the advantage {after:g} instead of {before:g}"
            raise ContractViolation(f"{name}(one more reward)", got, "Subtract the baseline from the return.")


def _renamed(run: Callable[..., Result], rows: Sequence[CheckRow]) -> Result:
    result = run([replace(row, key=row.key.translate(OTHER_NAMES)) for row in rows])
    return {(episode.translate(OTHER_NAMES), number): value for (episode, number), value in result.items()}


def _compare(name: str, expected: Result, got: Result, advice: str) -> None:
    for turn, value in expected.items():
        if value.shape != got[turn].shape or (value - got[turn]).abs().max() > TOLERANCE:
            first, second = (", ".join(f"{one:.4g}" for one in row[:3].tolist()) for row in (value, got[turn]))
            call = f"{name}(turn {turn[1]} of episode {turn[0]})"
            raise ContractViolation(call, f"returned {first} and then {second}", advice)
