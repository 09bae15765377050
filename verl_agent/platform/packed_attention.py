"""PyTorch's attention to packed rows, one call for each row, where flash-attn is not installed.

verl packs the rows of a micro batch into one sequence. transformers' `sdpa` gives this sequence a mask: PyTorch then
computes the square of all its tokens without FlashAttention. A row alone needs no mask, and runs on the FlashAttention
2 that PyTorch contains. The result is the same.
"""

from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

NAME = "sdpa_packed"
"""Name of this attention in transformers, which makes no mask for a name that it does not know."""


def use_packed_attention(model: Any) -> None:
    """Replace SDPA in a model of transformers whose rows verl packs; another kind of attention stays.

    A model with layers of limited range keeps its masks.
    """
    config = model.config.get_text_config()
    limited = {"full_attention"} != set(getattr(config, "layer_types", None) or ["full_attention"])
    if model.config._attn_implementation == "sdpa" and not limited:
        AttentionInterface.register(NAME, attend_to_rows)
        model.set_attn_implementation(NAME)


def attend_to_rows(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    position_ids: Tensor | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Return the attention's output, shape (1, tokens, heads, head size).

    Args:
        query: queries, shape (1, heads, tokens, head size).
        key: keys, shape (1, key-value heads, tokens, head size).
        value: values, shape as that of `key`.
        position_ids: positions, shape (1, tokens); a row begins with each 0.
    """
    if attention_mask is not None or position_ids is None or query.shape[0] != 1:
        raise ValueError("attention to packed rows needs one sequence with positions and no mask")
    starts = _row_starts(position_ids)
    ends = [*starts[1:], query.shape[2]]
    rows = [
        sdpa_attention_forward(
            module, *(part[:, :, start:end] for part in (query, key, value)), attention_mask=None, **options
        )[0]
        for start, end in zip(starts, ends, strict=True)
    ]
    return torch.cat(rows, dim=1), None


def _row_starts(position_ids: Tensor) -> list[int]:
    """Return the index of each row's first token; all layers of a pass share the tensor, so a GPU is asked once."""
    starts: list[int] | None = getattr(position_ids, "row_starts", None)
    if starts is None:
        starts = (position_ids[0] == 0).nonzero()[:, 0].tolist()
        position_ids.row_starts = starts
    if not starts or starts[0]:
        raise ValueError("attention to packed rows needs a sequence that begins with the first token of a row")
    return starts
