"""Rows without loss, cut to one token of prompt and one of response, so that the update spends no time on them.

verl fills a batch up to whole mini-batches with rows of 128 tokens (trainer/ppo/padding_utils.py). With small groups
and `skip_uniform`, these were half of the tokens of an update. A row must stay: all ranks take equally many rows, and
verl's loss reads the token before the response. Loss and gradient do not change, because the rows have no loss.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import transfer_queue as tq
from tensordict import TensorDict
from torch import Tensor
from transfer_queue import KVBatchMeta

ONE_TOKEN = (
    "prompts",
    "responses",
    "response_mask",
    "loss_mask",
    "rm_scores",
    "rollout_log_probs",
    "old_log_probs",
    "ref_log_prob",
    "advantages",
    "returns",
    "values",
    "rollout_is_weights",
)
"""Columns of verl with one entry for each token of the prompt, or of the response."""
TWO_TOKENS = ("input_ids", "attention_mask", "position_ids", "routed_experts", "teacher_ids", "teacher_logprobs")
"""Columns of verl with one entry for each token of both. The tokens of `position_ids` are its last dimension."""
LENGTHS = {"prompt_len": 1, "response_len": 1, "seq_len": 2}
"""Tags of a short row."""

Row = dict[str, Tensor]


def cut_padding(batch: KVBatchMeta) -> None:
    """Cut the rows that verl added to a batch, in TransferQueue and in its tags."""
    rows = [row for row, tag in enumerate(batch.tags) if tag.get("is_padding", False)]
    if not rows:
        return
    for row in rows:
        batch.tags[row] |= LENGTHS
    keys = [batch.keys[row] for row in rows]
    cut = [cut_row(row) for row in _read(batch, keys)]
    _write(batch, keys, cut, [batch.tags[row] for row in rows])


@contextmanager
def shortened(batch: KVBatchMeta, chosen: Sequence[bool]) -> Iterator[None]:
    """Cut rows of a batch in TransferQueue for a block of code."""
    keys = [key for key, cut in zip(batch.keys, chosen, strict=True) if cut]
    before = _read(batch, keys) if keys else []
    if keys:
        _write(batch, keys, [cut_row(row) for row in before])
    try:
        yield
    finally:
        for key, row in zip(keys, before, strict=True):  # one by one, because their lengths differ
            _write(batch, [key], [row])


def cut_row(row: Row) -> Row:
    """Return a row with its first token of the prompt, its last of the response, and its first two of both.

    Args:
        row: columns of `ONE_TOKEN`, `(T,)`, and `TWO_TOKENS`, `(T, ...)` or `position_ids` `(..., T)`.
    """
    short = {}
    for name, value in row.items():
        dim = value.dim() - 1 if name == "position_ids" else 0
        ends = [0] if name == "prompts" else [value.shape[dim] - 1] if name in ONE_TOKEN else [0, 1]
        short[name] = value.index_select(dim, torch.tensor(ends))
    return short


def _read(batch: KVBatchMeta, keys: list[str]) -> list[Row]:
    """Return the columns of rows, without those that no row has."""
    data = tq.kv_batch_get(keys=keys, partition_id=batch.partition_id, select_fields=[*ONE_TOKEN, *TWO_TOKENS])
    columns = {str(name): column.unbind() for name, column in data.items()}
    return [{name: values[row] for name, values in columns.items()} for row in range(len(keys))]


def _write(batch: KVBatchMeta, keys: list[str], rows: list[Row], tags: list[dict[str, object]] | None = None) -> None:
    """Replace columns of rows of equal lengths."""
    fields = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
    data = TensorDict(fields, batch_size=len(rows))
    tq.kv_batch_put(keys=keys, partition_id=batch.partition_id, fields=data, tags=tags)
