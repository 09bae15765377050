"""Attention in float32 within a model whose other products are in bfloat16.

torch 2.13's backward pass of attention on a CPU is three times as fast in float32 as in bfloat16 (184 tokens, 9 heads),
because the latter does not use the processor's bfloat16 units. Queries and keys keep their rotation in full, too.
"""

from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from verl_agent.platform.tree_attention import attend_tree, tree_of

NAME = "sdpa_float32"
"""Name of this attention in transformers."""


def use_float32_attention(model: Any) -> None:
    """Replace SDPA by SDPA in float32 in a model of transformers; another kind of attention stays."""
    if model.config._attn_implementation == "sdpa":
        AttentionInterface.register(NAME, attend_in_float32)
        AttentionMaskInterface.register(NAME, sdpa_mask)
        model.set_attn_implementation(NAME)


def attend_in_float32(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """Return the attention's output in the type of the values; see `sdpa_attention_forward`.

    Args:
        attention_mask: mask, or one that stands for a tree of tokens, see `tree_attention`.
    """
    if tree := tree_of(attention_mask):
        with torch.autocast(query.device.type, enabled=False):
            parts = (query.float(), key.float(), value.float())
            return attend_tree(*parts, tree, options.get("scaling")).to(value.dtype), None
    if attention_mask is not None and attention_mask.is_floating_point():
        attention_mask = attention_mask.float()
    with torch.autocast(query.device.type, enabled=False):
        output, _ = sdpa_attention_forward(module, query.float(), key.float(), value.float(), attention_mask, **options)
    return output.to(value.dtype), None
