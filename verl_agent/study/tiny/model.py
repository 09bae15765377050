"""Small llama, and its fast forward pass with a cache of keys and values for each row.

Letters at the end of names: N new tokens of all rows, B rows, H heads, L new tokens of a row, C tokens of a row so far,
D size of a head, V words.
"""

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM, LlamaForTokenClassification, PreTrainedModel

from verl_agent.study.settings import TinySettings
from verl_agent.study.tiny.words import Words

SPARE = 64
"""Columns by which a cache grows."""


def new_model(words: Words, settings: TinySettings, critic: bool = False) -> PreTrainedModel:
    """Return a llama with random weights; its logits are `(B, L, words)`, or `(B, L, 1)` of a critic."""
    config = LlamaConfig(
        vocab_size=len(words.pieces),
        hidden_size=settings.width,
        intermediate_size=3 * settings.width,
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.heads,
        max_position_embeddings=8192,
        num_labels=1,
    )
    return (LlamaForTokenClassification if critic else LlamaForCausalLM)(config).eval()


class Decoder:
    """Reads new tokens of some rows with the weights of a llama, and returns the logits after them.

    Only new tokens pass through the linear layers, without padding. A pass of the library's model computes padding and
    rows whose reply has ended, and copies all keys and values for each token.

    Args:
        model: model of `new_model`.
        rows: number of rows B.
    """

    def __init__(self, model: PreTrainedModel, rows: int) -> None:
        decoder, self._head = model.model, model.lm_head.weight
        self._embed, self._norm, self._rotary = decoder.embed_tokens.weight, decoder.norm.weight, decoder.rotary_emb
        self._heads, self._eps = decoder.config.num_attention_heads, decoder.config.rms_norm_eps
        self._layers = [
            (
                layer.input_layernorm.weight,
                torch.cat([getattr(layer.self_attn, f"{name}_proj").weight for name in "qkv"]),
                layer.self_attn.o_proj.weight,
                layer.post_attention_layernorm.weight,
                torch.cat([layer.mlp.gate_proj.weight, layer.mlp.up_proj.weight]),
                layer.mlp.down_proj.weight,
            )
            for layer in decoder.layers
        ]
        size = self._embed.shape[1] // self._heads
        self._held = torch.zeros(len(self._layers), 2, rows, self._heads, 0, size)

    def keep(self, rows: Sequence[int]) -> None:
        """Keep the cache of some rows, in their order."""
        if list(rows) != list(range(self._held.shape[2])):
            self._held = self._held[:, :, torch.tensor(rows)]

    def read(self, rows: Sequence[int], chunks: Sequence[Sequence[int]], starts: Sequence[int]) -> Tensor:
        """Return the logits after the new tokens of some rows, `(rows, V)`.

        Args:
            rows: indices of the rows.
            chunks: new tokens of each row, at least one.
            starts: tokens before them; what the cache holds behind is overwritten.
        """
        lengths = [len(chunk) for chunk in chunks]
        width, held = max(lengths), max(start + length for start, length in zip(starts, lengths, strict=True))
        if held > self._held.shape[4]:
            self._held = functional.pad(self._held, (0, 0, 0, held + SPARE - self._held.shape[4]))
        row_N = torch.tensor(rows).repeat_interleave(torch.tensor(lengths))
        offset_N = torch.cat([torch.arange(length) for length in lengths]) if width > 1 else torch.zeros_like(row_N)
        position_N = torch.tensor(starts).repeat_interleave(torch.tensor(lengths)) + offset_N
        last = torch.tensor([*accumulate(lengths)]) - 1
        all_rows = self._held.shape[2]
        if packed := 2 * len(rows) < all_rows:  # attention over the other rows would cost more than a copy
            picked, place_N = torch.tensor(rows), torch.arange(len(rows)).repeat_interleave(torch.tensor(lengths))
        else:
            place_N = row_N
        count = len(rows) if packed else all_rows
        seen_BL = torch.zeros(count, width, dtype=torch.long)
        seen_BL[place_N, offset_N] = position_N
        hidden_BLC = torch.arange(held) > seen_BL[..., None]
        mask_B1LC = torch.zeros(hidden_BLC.shape).masked_fill_(hidden_BLC, -1e9)[:, None]
        x_N = functional.embedding(torch.tensor([token for chunk in chunks for token in chunk]), self._embed)
        cos_N, sin_N = (one[0, :, None] for one in self._rotary(x_N, position_N[None]))
        query_BHLD = torch.zeros(count, self._heads, width, x_N.shape[1] // self._heads)
        for (norm, qkv, out, norm_2, gate_up, down), held_BHCD in zip(self._layers, self._held, strict=True):
            query, key, value = (
                functional.linear(self._normed(x_N, norm), qkv).view(len(x_N), 3, self._heads, -1).unbind(1)
            )
            held_BHCD[0][row_N, :, position_N] = turned(key, cos_N, sin_N)
            held_BHCD[1][row_N, :, position_N] = value
            query_BHLD[place_N, :, offset_N] = turned(query, cos_N, sin_N)
            keys, values = held_BHCD[:, picked, :, :held] if packed else held_BHCD[:, :, :, :held]
            seen = functional.scaled_dot_product_attention(query_BHLD, keys, values, attn_mask=mask_B1LC)
            x_N = x_N + functional.linear(seen[place_N, :, offset_N].flatten(1), out)
            gate, up = functional.linear(self._normed(x_N, norm_2), gate_up).chunk(2, -1)
            x_N = x_N + functional.linear(functional.silu(gate) * up, down)
        return functional.linear(self._normed(x_N[last], self._norm), self._head)

    def _normed(self, x_N: Tensor, weight: Tensor) -> Tensor:
        return functional.rms_norm(x_N, weight.shape, weight, self._eps)


def turned(x_NHD: Tensor, cos_N1D: Tensor, sin_N1D: Tensor) -> Tensor:
    """Return queries or keys with rotary position embeddings."""
    first, second = x_NHD.chunk(2, -1)
    return x_NHD * cos_N1D + torch.cat([-second, first], -1) * sin_N1D
