"""Attention on a CPU: in float32, and in a tree of tokens, in which each token sees its ancestors.

torch 2.13's backward pass of attention on a CPU is three times as fast in float32 as in bfloat16 (184 tokens, 9 heads),
because the latter does not use the processor's bfloat16 units. Queries and keys keep their rotation in full, too.

The tree travels through the model as a mask of four dimensions, which transformers hands to attention as it is
(masking_utils.py, `_preprocess_mask_arguments`).
"""

from typing import Any

import torch
from torch import Tensor
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from verl_agent.platform.packed_attention import replace_sdpa
from verl_agent.platform.token_tree import Branch, TokenTree

NAME = "sdpa_float32"
"""Name of this attention in transformers."""
FORWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


FULL_ATTENTION = "full_attention"
"""transformers' name of layers whose tokens see all before them."""


def mask_of(tree: TokenTree) -> Tensor:
    """Return a mask that stands for a tree, see `tree_of`."""
    mask = torch.ones(1, 1, 1, 1, dtype=torch.bool)
    mask.token_tree = tree
    return mask


def tree_of(mask: Tensor | None) -> TokenTree | None:
    """Return the tree that a mask stands for, or None."""
    tree: TokenTree | None = getattr(mask, "token_tree", None)
    return tree


def attend_tree(query: Tensor, key: Tensor, value: Tensor, tree: TokenTree, scale: float | None) -> Tensor:
    """Return the attention's output, float32 `(1, U, heads, head size)`.

    Args:
        query: queries, float32 `(1, heads, U, head size)`.
        key: keys, float32 `(1, key-value heads, U, head size)`.
        value: values, shape and type as those of `key`.
        tree: tree of the tokens.
        scale: factor of the scores; None for `head size ** -0.5`.
    """
    output: Tensor = _TreeAttention.apply(query, key, value, tree, scale)
    return output.transpose(1, 2).contiguous()


class _TreeAttention(torch.autograd.Function):
    """Attention of one branch after another; the backward pass gathers the keys and values of ancestors again."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, tree: TokenTree, scale: float | None) -> Tensor:
        """Return the output, of the shape of `query`."""
        output, sums = torch.empty_like(query), query.new_empty(query.shape[:3])
        for branch in tree.branches:
            own = slice(branch.start, branch.end)
            seen = (_seen(part, branch) for part in (key, value))
            output[:, :, own], sums[:, :, own] = FORWARD(query[:, :, own], *seen, 0.0, **_options(branch, scale))
        ctx.save_for_backward(query, key, value, output, sums)
        ctx.tree, ctx.scale = tree, scale
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of queries, keys and values."""
        query, key, value, output, sums = ctx.saved_tensors
        of_query, of_key, of_value = torch.empty_like(query), torch.zeros_like(key), torch.zeros_like(value)
        for branch in ctx.tree.branches:
            own, before = slice(branch.start, branch.end), len(branch.ancestors)
            seen = [_seen(part, branch) for part in (key, value)]
            saved = (query[:, :, own], *seen, output[:, :, own], sums[:, :, own])
            of_query[:, :, own], *of_seen = BACKWARD(
                gradients[0][:, :, own], *saved, 0.0, **_options(branch, ctx.scale)
            )
            for total, part in zip((of_key, of_value), of_seen, strict=True):
                total.index_add_(2, branch.ancestors, part[:, :, :before])
                total[:, :, own] += part[:, :, before:]
        return of_query, of_key, of_value, None, None


def _seen(part: Tensor, branch: Branch) -> Tensor:
    """Return the keys, or values, of a branch and its ancestors."""
    own = part[:, :, branch.start : branch.end]
    return torch.cat([part.index_select(2, branch.ancestors), own], 2) if len(branch.ancestors) else own


def _options(branch: Branch, scale: float | None) -> dict[str, Any]:
    alone = not len(branch.ancestors)
    return {"is_causal": alone, "attn_mask": None if alone else branch.mask, "scale": scale}


def allows_trees(model: Any) -> bool:
    """Return False for a model of transformers whose layers mix tokens other than by attention to all before."""
    config = model.config.get_text_config()
    limited = set(getattr(config, "layer_types", None) or [FULL_ATTENTION]) != {FULL_ATTENTION} or getattr(
        config, "sliding_window", None
    )
    rows = [torch.tensor(ids) for ids in ([1, 2, 3, 1, 2], [1, 2, 3, 3, 2, 1], [1, 2, 2])]
    if limited or is_random(model, rows[0]):
        return False
    tree = TokenTree.of(rows)
    inputs = {"input_ids": tree.ids_U[None], "position_ids": tree.depths_U[None], "attention_mask": mask_of(tree)}
    with torch.no_grad():
        alone = torch.cat([model(input_ids=row[None], use_cache=False).logits[0] for row in rows])
        try:
            together = model(**inputs, use_cache=False).logits[0, tree.places_T]
        except (RuntimeError, TypeError, ValueError):  # the boundary to unknown models, which keep single rows
            return False
    return bool((together - alone).norm() < (1e-3 if alone.dtype == torch.float32 else 0.05) * alone.norm())


def is_random(model: Any, ids: Tensor) -> bool:
    """Return True if two passes of a model of transformers in the mode of training differ, by dropout for example.

    Args:
        ids: tokens of a row, int64 `(T,)`.
    """
    trains = model.training
    model.train()
    with torch.no_grad():
        first, second = (model(input_ids=ids[None], use_cache=False).logits for _ in range(2))
    model.train(trains)
    return not torch.allclose(first, second, rtol=1e-3, atol=1e-5)


def use_float32_attention(model: Any) -> None:
    """Replace SDPA by SDPA in float32."""
    replace_sdpa(model, NAME, attend_in_float32, sdpa_mask)


def attend_in_float32(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """Return the attention's output in the type of the values; see `sdpa_attention_forward`.

    Args:
        attention_mask: mask, or one that stands for a tree of tokens, see `tree_of`.
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
