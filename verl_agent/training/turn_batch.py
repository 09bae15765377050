"""Turns of one batch in TransferQueue: they are read, and change rewards and masks during the update."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

import torch
import transfer_queue as tq
from tensordict import NonTensorStack, TensorDict
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transfer_queue import KVBatchMeta

from verl_agent.config.algorithms import ESTIMATOR
from verl_agent.errors import ConfigError
from verl_agent.rollout.tokens import expand
from verl_agent.training.groups import group_of
from verl_agent.training.turns import TurnSpan, locate_turns, rewards_on_last_tokens, values_on_tokens

Columns = dict[str, list[Tensor]]
"""Columns of a batch, each with one tensor `(T,)` for each row."""
MASKS = ("response_mask", "loss_mask")
"""Columns of verl that select the tokens of the loss, and those that its mean divides by."""


def fetch_columns(batch: KVBatchMeta, names: Sequence[str]) -> Columns:
    """Return columns of a batch; one that no row has is left out."""
    data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=list(names))
    return {name: list(data[name].unbind()) for name in names if name in data}


def fetch_extra_fields(batch: KVBatchMeta) -> list[dict[str, Any]]:
    """Return the `extra_fields` of each row, as the agent loop has written them."""
    data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=["extra_fields"])
    return [getattr(value, "data", value) for value in data["extra_fields"]]


def write_columns(batch: KVBatchMeta, columns: Columns) -> None:
    """Replace columns of a batch."""
    nested = {name: torch.nested.as_nested_tensor(rows, layout=torch.jagged) for name, rows in columns.items()}
    tq.kv_batch_put(
        keys=batch.keys, partition_id=batch.partition_id, fields=TensorDict(nested, batch_size=len(batch.keys))
    )


def computed(names: Iterable[str], bypass_mode: bool) -> list[str]:
    """Return the columns that hold what their name says.

    With `algorithm.rollout_correction.bypass_mode` verl copies the engine's log-probs to `old_log_probs`, where the
    trainer's are otherwise.
    """
    return [name for name in names if not (bypass_mode and name == "old_log_probs")]


@contextmanager
def replaced(batch: KVBatchMeta, changed: Columns) -> Iterator[None]:
    """Replace columns of a batch for a block of code."""
    before = fetch_columns(batch, list(changed))
    write_columns(batch, changed)
    try:
        yield
    finally:
        write_columns(batch, before)


@dataclass(frozen=True, slots=True)
class TurnBatch:
    """Turns and truncated rows of one batch.

    Attributes:
        turns: turns of the batch.
        masks: 0/1 `(T,)` of each row, 1 where the model wrote the token.
        dropped: True for each row of an episode that is left out of the loss.
        padding: True for each row that verl added.
        versions: int64 `(T,)` of each row, training step of the weights that sampled the token; -1 where the mask is 0.
        token_values: float `(T,)` of each row, critic's value of the state before each token; None without a critic.
    """

    turns: Sequence[TurnSpan]
    masks: Sequence[Tensor]
    dropped: Sequence[bool]
    padding: Sequence[bool]
    versions: Sequence[Tensor] = ()
    token_values: Sequence[Tensor] | None = None

    @classmethod
    def read(cls, batch: KVBatchMeta) -> Self:
        """Read the turns of a batch, with the critic's values if it has any."""
        columns = fetch_columns(batch, ["response_mask", "values"])
        fields = fetch_extra_fields(batch)
        padding = [tag.get("is_padding", False) for tag in batch.tags]
        rewards = [None if pad else field["turns"] for pad, field in zip(padding, fields, strict=True)]
        masks = columns["response_mask"]
        turns = locate_turns(batch.keys, masks, rewards, columns.get("values"))
        dropped = [row is not None and row.get("truncated") == "drop" for row in rewards]
        runs = [[] if pad else field.get("versions", []) for pad, field in zip(padding, fields, strict=True)]
        versions = [_on_written(expand(row), mask) for row, mask in zip(runs, masks, strict=True)]
        return cls(turns, masks, dropped, padding, versions, columns.get("values"))

    def write_roles(self, batch: KVBatchMeta) -> None:
        """Give rows of seats the group of their seat in the column `uid`, which verl's estimators read."""
        groups = {turn.row: turn.group for turn in self.turns if turn.role}
        if groups:
            names = [groups.get(row, group_of(key)) for row, key in enumerate(batch.keys)]
            fields = TensorDict({"uid": NonTensorStack(*names)}, batch_size=len(names))
            tq.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=fields)

    @property
    def whole_episodes(self) -> bool:
        """True if every row begins with the first turn of its episode."""
        first = {turn.row: turn.number for turn in reversed(self.turns)}
        return not any(first.values())

    @property
    def dropped_share(self) -> float:
        """Share of the rows, without padding, that are left out of the loss."""
        return sum(self.dropped) / max(self.padding.count(False), 1)

    def rewards(self, gamma: float) -> Columns:
        """Return verl's rewards of tokens with those of the turns, see `rewards_on_last_tokens`.

        Raises:
            ConfigError: an episode has several rows, and the returns of the earlier ones would miss its later rewards.
                Preflight refuses contexts that split episodes; a program that changes its history splits them, too.
        """
        if not self.whole_episodes:
            raise ConfigError(
                f"this {ESTIMATOR} takes each row for an episode, and an episode has several: what the model read "
                "before was changed. Choose another estimator, such as grpo or turn_gae, set credit.place=outcome and "
                "credit.truncated=as_is, or let conversations only grow."
            )
        return {"rm_scores": self._rows(rewards_on_last_tokens(self.turns, self._like_BT(), gamma))}

    def check_kl_in_reward(self) -> None:
        """Check that `algorithm.use_kl_in_reward` penalizes whole episodes.

        Raises:
            ConfigError: an episode has several rows, of which verl adds up the rewards of the last.
        """
        if not self.whole_episodes:
            raise ConfigError(
                "algorithm.use_kl_in_reward=true is not allowed where an episode has several rows, and one has: what "
                "the model read before was changed. Only the penalty of the last row would count. Allowed: false. Set "
                "actor_rollout_ref.actor.use_kl_loss=true instead, or let conversations only grow."
            )

    def values(self) -> Columns:
        """Return the critic's values with the value of a turn on all its tokens; verl's metrics then describe turns."""
        return {
            "values": self._rows(values_on_tokens(self.turns, [turn.value for turn in self.turns], self._like_BT()))
        }

    def masks_without_dropped(self, present: Columns) -> Columns:
        """Return the masks of the policy's loss without the dropped rows.

        verl sums the loss over `response_mask` and divides a mean over tokens by the sum of `loss_mask`. One token of
        each dropped row stays in the latter. The loss of a mini-batch in which all rows are dropped is then 0 and not
        0 / 0.
        """
        masked = {
            name: [row * (not out) for row, out in zip(present[name], self.dropped, strict=True)] for name in MASKS
        }
        for row, dropped in zip(masked["loss_mask"], self.dropped, strict=True):
            if dropped:
                row[-1] = 1
        return masked

    def masks_of_first_tokens(self, present: Columns) -> Columns:
        """Return the masks of the loss of a critic of turns: only the first token of each reply."""
        keep = [torch.zeros_like(mask) for mask in self.masks]
        for turn in self.turns:
            keep[turn.row][turn.start] = 1
        return {name: [row * kept for row, kept in zip(present[name], keep, strict=True)] for name in MASKS}

    def _like_BT(self) -> Tensor:
        return pad_sequence(list(self.masks), batch_first=True)

    def _rows(self, values_BT: Tensor) -> list[Tensor]:
        return [row[: len(mask)] for row, mask in zip(values_BT, self.masks, strict=True)]


def _on_written(values: Sequence[int], mask_T: Tensor) -> Tensor:
    """Return int64 `(T,)` with one value for each token with mask 1, in order, and -1 elsewhere; all -1 for none."""
    row_T = torch.full_like(mask_T, -1, dtype=torch.int64)
    if values:
        row_T[mask_T.bool()] = torch.tensor(values, dtype=torch.int64)
    return row_T
