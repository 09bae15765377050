"""Micro-batches of an update or of a forward pass: which rows are computed together, and which not at all."""

from typing import Any

import torch
import torch.distributed
from tensordict import TensorDict
from torch import Tensor
from verl.utils import tensordict_utils as tu

from verl_agent.platform.token_tree import pack


def split_micro_batches(data: TensorDict, shares: bool, keep_all: bool, ranks: Any = None) -> list[Tensor]:
    """Return the rows of each micro-batch of a batch, int64.

    A micro-batch has no more tokens than `micro_batch_size_per_gpu` of the longest rows, so that it needs no more
    memory. A beginning that its rows share counts once.

    Args:
        data: batch of verl, with `force_group_size` consecutive rows that stay together, such as the pairs of DPO.
        shares: False counts the tokens of rows that are padded to the longest one of their micro-batch.
        keep_all: False leaves out rows without loss. They have no gradient, and no part in the numbers that verl
            divides the loss by.
        ranks: process group whose ranks need equally many micro-batches; None for one rank.
    """
    together = int(tu.get_non_tensor_data(data=data, key="force_group_size", default=1))
    micro = int(data["micro_batch_size_per_gpu"])
    lengths = data["input_ids"].offsets().diff().view(-1, together)
    units = torch.arange(len(lengths)) if keep_all else learning(data, together)
    if not shares:
        chosen = units[lengths.amax(1)[units].argsort(descending=True, stable=True)]
        groups = list(torch.split(chosen, micro))
    else:
        rows, longest = data["input_ids"].unbind(), int(lengths.max())
        parts = [[rows[int(unit) * together + place] for place in range(together)] for unit in units]
        groups = [units[indices] for indices in pack(parts, micro * together * longest)]
    if ranks is not None:
        groups = evened(groups, ranks)
    return [(group[:, None] * together + torch.arange(together)).flatten() for group in groups]


def learning(data: TensorDict, together: int) -> Tensor:
    """Return the units of rows with a loss, int64; all if none has one."""
    masks = [mask for name in ("response_mask", "loss_mask") if (mask := data.get(name, None)) is not None]
    learns = torch.tensor([[bool(row.any()) for row in mask.unbind()] for mask in masks]).any(0)
    units = learns.view(-1, together).any(1).nonzero()[:, 0]
    return units if len(units) else torch.arange(len(learns) // together)


def evened(groups: list[Tensor], ranks: Any) -> list[Tensor]:
    """Return as many groups as the rank with most of them has; all ranks have equally many rows."""
    wanted = torch.tensor(len(groups))
    torch.distributed.all_reduce(wanted, torch.distributed.ReduceOp.MAX, ranks)
    while len(groups) < int(wanted):
        largest = max(range(len(groups)), key=lambda one: len(groups[one]))
        groups[largest : largest + 1] = groups[largest].chunk(2)
    return groups
