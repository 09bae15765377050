"""Turns of a batch: positions of their tokens, rewards, and keys of the states in which they begin.

verl passes rewards, mask and group of each row to an estimator, but no turns. The trainer sets `BATCH_TURNS` while
estimators run.
"""

from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from verl_agent.config.reward_shaping import RewardShaping


@dataclass(frozen=True, slots=True)
class TurnSpan:
    """Position and data of one reply in a batch.

    Attributes:
        row: index of the row in the batch.
        start: index of the reply's first token in the row's response.
        end: index after its last token.
        group: key of the episodes that are compared: those of one task, and in an arena also of one seat.
        episode: key of the episode, unique in the batch.
        number: number of the turn in its episode, from 0.
        reward: shaped reward of the turn.
        anchor: key of the state in which the turn begins.
        value: critic's value of that state; 0 without a critic.
        value_after: critic's value at the end of the row, if the episode is bootstrapped there; else 0.
        turn_value_after: the same of a critic of turns, which learns values of states before replies only. If the row
            does not hold the state after the turn, it is the value of the turn's own state.
        role: game and seat in an arena with several policies; else "".
    """

    row: int
    start: int
    end: int
    group: str
    episode: str
    number: int
    reward: float
    anchor: str
    value: float = 0.0
    value_after: float = 0.0
    turn_value_after: float = 0.0
    role: str = ""


@dataclass(frozen=True, slots=True)
class BatchTurns:
    """All turns of a batch, and the settings of the estimators that use them; critic's values as in `locate_turns`."""

    turns: Sequence[TurnSpan]
    shaping: RewardShaping
    values: Sequence[Tensor] | None = None
    baselines: dict[str, float] = field(default_factory=dict)
    """Running mean return of each role, which `rae` updates; state of the trainer."""


BATCH_TURNS: ContextVar[BatchTurns] = ContextVar("turns of the batch whose advantages are estimated")
"""Turns of the present batch; `EpisodeTraining` sets them during verl's `_compute_advantage`."""


def reply_spans(mask_T: Tensor) -> list[tuple[int, int]]:
    """Return start and end of each reply of a row: the runs of ones in its mask.

    Args:
        mask_T: 0/1 `(T,)`, 1 where the model wrote the token. Tokens of the template separate two replies.
    """
    padded = torch.nn.functional.pad(mask_T.long(), (1, 1))
    change = padded.diff()
    starts, ends = (change == 1).nonzero()[:, 0].tolist(), (change == -1).nonzero()[:, 0].tolist()
    return list(zip(starts, ends, strict=True))


def locate_turns(
    keys: Sequence[str],
    masks: Sequence[Tensor],
    turn_rewards: Sequence[Mapping[str, Any] | None],
    values: Sequence[Tensor] | None = None,
) -> list[TurnSpan]:
    """Return the turns of all rows of a batch.

    Args:
        keys: verl's key of each row, `<group>_<sample>_<segment>`.
        masks: 0/1 `(T,)` of each row.
        turn_rewards: `TurnRewards.to_fields()` of each row, None for verl's padding.
        values: float `(T,)` of each row, the critic's value of the state before each token; None without a critic.

    Raises:
        ValueError: the mask of a row has another number of replies than its rewards, which is a bug.
    """
    turns: list[TurnSpan] = []
    for row, (key, mask_T, rewards) in enumerate(zip(keys, masks, turn_rewards, strict=True)):
        if rewards is None:
            continue
        group, sample, _ = key.rsplit("_", 2)
        role, spans = rewards.get("role", ""), reply_spans(mask_T)
        if not len(spans) == len(rewards["rewards"]) == len(rewards["anchors"]):
            raise ValueError(f"row {key} holds {len(spans)} replies, its episode counted {len(rewards['rewards'])}.")
        of_row = [
            TurnSpan(
                row=row,
                start=start,
                end=end,
                group=f"{group} {role}" if role else group,
                episode=f"{group}_{sample}",
                number=rewards["first"] + number,
                reward=float(rewards["rewards"][number]),
                anchor=rewards["anchors"][number],
                value=values[row][start].item() if values else 0.0,
                role=role,
            )
            for number, (start, end) in enumerate(spans)
        ]
        if values and of_row and rewards.get("truncated") == "bootstrap":
            last, value = of_row[-1], values[row][-1].item()
            # `add_last_state` appends the state and one token; after a truncated reply that token alone.
            has_state = len(mask_T) - last.end > 1
            after = value if has_state else last.value
            of_row[-1] = replace(last, value_after=value, turn_value_after=after)
        turns += of_row
    return turns


def values_on_tokens(turns: Sequence[TurnSpan], values: Sequence[float], like_BT: Tensor) -> Tensor:
    """Return a tensor in which every token of a turn has the turn's value.

    Returns:
        Float `(B, T)`, 0 outside of the turns.
    """
    out_BT = torch.zeros_like(like_BT, dtype=torch.float32)
    for turn, value in zip(turns, values, strict=True):
        out_BT[turn.row, turn.start : turn.end] = value
    return out_BT


def rewards_on_last_tokens(turns: Sequence[TurnSpan], like_BT: Tensor, gamma: float = 1.0) -> Tensor:
    """Return a tensor with each turn's reward on the last token of its reply.

    A bootstrapped episode also has the discounted value of its last state there. That is the target of partial-episode
    bootstrapping, r + gamma * V(s') (arXiv 1712.00378, section 4).

    Returns:
        Float `(B, T)`, 0 elsewhere.
    """
    out_BT = torch.zeros_like(like_BT, dtype=torch.float32)
    for turn in turns:
        out_BT[turn.row, turn.end - 1] = turn.reward + gamma * turn.value_after
    return out_BT
