"""PyTorch's attention to packed rows, one call for each row, where flash-attn is not installed.

verl packs the rows of a micro batch into one sequence. transformers' `sdpa` gives this sequence a mask: PyTorch then
computes the square of all its tokens without FlashAttention. A row alone needs no mask, and runs on the FlashAttention
2 that PyTorch contains. The result is the same.

transformers asks for the mask of each kind of layer. Here it gets none for layers whose tokens see all before them in
their row. Other layers, with windows or chunks for example, keep their masks.
"""

from collections.abc import Callable
from inspect import getclosurevars
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import (
    AttentionMaskInterface,
    and_masks,
    causal_mask_function,
    packed_sequence_mask_function,
    sdpa_mask,
)

NAME = "sdpa_packed"
"""Name of this attention in transformers."""


def replace_sdpa(model: Any, name: str, attend: Callable[..., Any], mask: Callable[..., Any]) -> None:
    """Replace SDPA in a model of transformers by an attention with its masks; another kind of attention stays."""
    if model.config._attn_implementation == "sdpa":
        AttentionInterface.register(name, attend)
        AttentionMaskInterface.register(name, mask)
        model.set_attn_implementation(name)


def use_packed_attention(model: Any) -> None:
    """Replace SDPA in a model whose rows verl packs."""
    replace_sdpa(model, NAME, attend_to_rows, mask_unless_rows)


def mask_unless_rows(
    *args: Any,
    mask_function: Callable[..., Any] = causal_mask_function,
    attention_mask: Tensor | None = None,
    local_size: int | None = None,
    use_vmap: bool = False,
    **options: Any,
) -> Tensor | None:
    """Return None where each token sees all before it in its row, and otherwise the mask of `sdpa_mask`."""
    if attention_mask is None and local_size is None and not use_vmap and sees_whole_rows(mask_function):
        return None
    options |= {"mask_function": mask_function, "attention_mask": attention_mask, "local_size": local_size}
    mask: Tensor | None = sdpa_mask(*args, **options, use_vmap=use_vmap)
    return mask


def sees_whole_rows(mask_function: Callable[..., Any]) -> bool:
    """Return True for transformers' causal mask, and for its intersection with packed rows."""
    if mask_function is causal_mask_function:
        return True
    if mask_function.__qualname__.partition(".")[0] != and_masks.__name__:
        return False
    parts = getclosurevars(mask_function).nonlocals.get("mask_functions", ())
    rows = [one for one in parts if one is not causal_mask_function]
    return len(rows) < len(parts) and all(
        one.__qualname__.partition(".")[0] == packed_sequence_mask_function.__name__ for one in rows
    )


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
        attention_mask: mask of a layer of another kind; None for whole rows.
        position_ids: positions, shape (1, tokens); a row begins with each 0.
    """
    if attention_mask is not None:
        output: tuple[Tensor, None] = sdpa_attention_forward(module, query, key, value, attention_mask, **options)
        return output
    if position_ids is None or query.shape[0] != 1:
        raise ValueError("attention to packed rows needs one sequence with positions")
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
