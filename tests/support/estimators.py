"""Advantages from the function that verl's trainer calls, on tensors as the trainer builds them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import fmean

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput
from verl.protocol import DataProto
from verl.trainer.config import AlgoConfig
from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories

from verl_agent.config.reward_shaping import RewardShaping
from verl_agent.rollout.tokens import Segment
from verl_agent.training.estimators import ROLE_DECAY
from verl_agent.training.turns import BATCH_TURNS, BatchTurns, TurnSpan, locate_turns, reply_spans

OutcomeRow = tuple[str, Segment, float]
"""Group, tokens and return of an episode."""
TurnRow = tuple[str, Segment, list[float], list[str]]
"""Key, tokens, turn rewards and anchors of a row."""


def outcome_advantages(
    estimator: str,
    rows: Sequence[OutcomeRow],
    values_BT: Tensor | None = None,
    gamma: float = 1.0,
    lam: float = 1.0,
    keys: list[str] | None = None,
) -> DataProto:
    """Estimate advantages of rows whose return is on the last token."""
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
    keys = keys or [f"{group}_{index}_0" for index, (group, _, _) in enumerate(rows)]
    config = AlgoConfig(adv_estimator=estimator, gamma=gamma, lam=lam)
    return compute_advantage_for_multi_trajectories(data, keys, estimator, gamma, lam, config=config)


def padded_mask(rows: Sequence[TurnRow]) -> Tensor:
    """Return the response mask of the batch, 0/1 `(B, T)`."""
    return pad_sequence([torch.tensor(segment.response_mask) for _, segment, _, _ in rows], batch_first=True)


@contextmanager
def batch_turns(
    rows: Sequence[TurnRow],
    shaping: RewardShaping,
    firsts: Sequence[int] | None = None,
    values: Sequence[Tensor] | None = None,
    truncated: Sequence[str] | None = None,
) -> Iterator[Sequence[TurnSpan]]:
    """Set `BATCH_TURNS` as the trainer does, and yield the turns."""
    turns = locate_turns(
        [key for key, *_ in rows],
        [torch.tensor(segment.response_mask) for _, segment, _, _ in rows],
        [
            {"rewards": rewards, "anchors": anchors, "first": first, "truncated": treatment}
            for (_, _, rewards, anchors), first, treatment in zip(
                rows, firsts or [0] * len(rows), truncated or ["as_is"] * len(rows), strict=True
            )
        ],
        values,
    )
    token = BATCH_TURNS.set(BatchTurns(turns, shaping))
    try:
        yield turns
    finally:
        BATCH_TURNS.reset(token)


def turn_advantages(
    estimator: str, rows: Sequence[TurnRow], shaping: RewardShaping | None = None, **settings: object
) -> DataProto:
    """Estimate advantages of rows with turn rewards."""
    mask_BT = padded_mask(rows)
    rewards_BT = torch.zeros(mask_BT.shape)
    for row, (_, segment, rewards, _) in enumerate(rows):
        rewards_BT[row, len(segment.response_ids) - 1] = sum(rewards)
    config = AlgoConfig(adv_estimator=estimator, **settings)
    data = DataProto.from_dict(
        {"response_mask": mask_BT, "token_level_rewards": rewards_BT},
        non_tensors={"uid": np.array([key.split("_")[0] for key, *_ in rows], dtype=object)},
    )
    with batch_turns(rows, shaping or RewardShaping()):
        return compute_advantage_for_multi_trajectories(
            data,
            [key for key, *_ in rows],
            estimator,
            norm_adv_by_std_in_grpo=config.norm_adv_by_std_in_grpo,
            config=config,
        )


def values_by_turn(data: DataProto, rows: Sequence[TurnRow], name: str = "advantages") -> list[list[float]]:
    """Return the value of each turn, after a check that all its tokens have the same one."""
    values = []
    for row, (_, segment, _, _) in enumerate(rows):
        row_T = data.batch[name][row]
        turns = [row_T[start:end] for start, end in reply_spans(torch.tensor(segment.response_mask))]
        assert all((turn == turn[0]).all() for turn in turns)
        values.append([turn[0].item() for turn in turns])
    return values


def moved_baseline(baseline: float, returns: Sequence[float]) -> float:
    """Return a baseline of `rae` after some episodes of its role."""
    kept = ROLE_DECAY ** len(returns)
    return kept * baseline + (1 - kept) * fmean(returns)
