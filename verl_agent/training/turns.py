"""The turns of a batch: where their tokens lie, what they earned, and from which state they were taken.

verl hands an estimator rewards, mask and group of each row. What it does not know of turns, the trainer puts into
`BATCH_TURNS` while estimators run.
"""

from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from verl_agent.config.reward_shaping import RewardShaping


@dataclass(frozen=True, slots=True)
class TurnSpan:
    """One reply in a batch.

    Attributes:
        row: of the batch.
        start: of its tokens in the row's response.
        end: behind them.
        group: uid of the task that was played.
        session: the episode, unique in the batch.
        number: of the turn in its episode, from 0.
        reward: what it is credited with.
        anchor: key of the state that it was taken from.
    """

    row: int
    start: int
    end: int
    group: str
    session: str
    number: int
    reward: float
    anchor: str


@dataclass(frozen=True, slots=True)
class BatchTurns:
    """All turns of a batch, and the settings of those who look at them."""

    turns: Sequence[TurnSpan]
    credit: RewardShaping


BATCH_TURNS: ContextVar[BatchTurns] = ContextVar("turns of the batch whose advantages are estimated")
"""Set by `EpisodeTrainer` around verl's `_compute_advantage`."""


def spans(mask_T: Tensor) -> list[tuple[int, int]]:
    """Start and end of each run of ones: the replies of a row.

    Args:
        mask_T: 0/1 `(T,)`, 1 where the model wrote the token. Template tokens part two replies.
    """
    padded = torch.nn.functional.pad(mask_T.long(), (1, 1))
    change = padded.diff()
    starts, ends = (change == 1).nonzero()[:, 0].tolist(), (change == -1).nonzero()[:, 0].tolist()
    return list(zip(starts, ends, strict=True))


def locate_turns(
    keys: Sequence[str], masks: Sequence[Tensor], credits_: Sequence[Mapping[str, Any] | None]
) -> list[TurnSpan]:
    """Bring together what the rows of a batch say of their turns.

    Args:
        keys: of the rows, `<group>_<sample>_<part>` as verl writes them.
        masks: 0/1 `(T,)` of each row.
        credits_: `TurnRewards.to_fields()` of each row, None for verl's padding.

    Raises:
        ValueError: a row has not as many replies as its episode loop counted; a bug.
    """
    placed: list[TurnSpan] = []
    for row, (key, mask_T, credit) in enumerate(zip(keys, masks, credits_, strict=True)):
        if credit is None:
            continue
        group, sample, _ = key.rsplit("_", 2)
        found = spans(mask_T)
        if not len(found) == len(credit["rewards"]) == len(credit["anchors"]):
            raise ValueError(f"row {key} holds {len(found)} replies, its episode counted {len(credit['rewards'])}.")
        for number, (start, end) in enumerate(found):
            placed.append(
                TurnSpan(
                    row,
                    start,
                    end,
                    group,
                    f"{group}_{sample}",
                    credit["first"] + number,
                    float(credit["rewards"][number]),
                    credit["anchors"][number],
                )
            )
    return placed


def on_tokens(turns: Sequence[TurnSpan], values: Sequence[float], like_BT: Tensor) -> Tensor:
    """Give every token of a turn the turn's value.

    Returns:
        Float `(B, T)`, 0 where no turn lies.
    """
    out_BT = torch.zeros_like(like_BT, dtype=torch.float32)
    for turn, value in zip(turns, values, strict=True):
        out_BT[turn.row, turn.start : turn.end] = value
    return out_BT


def on_last_tokens(turns: Sequence[TurnSpan], like_BT: Tensor) -> Tensor:
    """Put each turn's reward on the last token that the model wrote in it; float `(B, T)`."""
    out_BT = torch.zeros_like(like_BT, dtype=torch.float32)
    for turn in turns:
        out_BT[turn.row, turn.end - 1] = turn.reward
    return out_BT
