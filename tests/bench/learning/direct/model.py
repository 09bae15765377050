"""Transformer of about 100,000 parameters, as policy or as critic."""

import torch
from torch import Tensor, nn
from torch.nn import functional

WIDTH, LAYERS, HEADS = 64, 2, 4


class Block(nn.Module):
    """Causal attention and a feed-forward layer, both with normalisation before and a residual connection."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.project, self.merge = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.feed = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x_BLD: Tensor) -> Tensor:
        """Return the next hidden states, float `(B, L, WIDTH)`."""
        rows, length, _ = x_BLD.shape
        heads = self.project(self.norms[0](x_BLD)).view(rows, length, 3, HEADS, WIDTH // HEADS)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x_BLD = x_BLD + self.merge(mixed.transpose(1, 2).reshape(rows, length, WIDTH))
        return x_BLD + self.feed(self.norms[1](x_BLD))


class Transformer(nn.Module):
    """Decoder with learned positions.

    Args:
        tokens: size of the vocabulary.
        outputs: `tokens` for a policy, 1 for a critic.
        length: maximum length of a sequence.
    """

    def __init__(self, tokens: int, outputs: int, length: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(tokens, WIDTH), nn.Embedding(length, WIDTH)
        self.blocks = nn.Sequential(*[Block() for _ in range(LAYERS)])
        self.head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, outputs))

    def forward(self, tokens_BL: Tensor) -> Tensor:
        """Return logits or values of each position, float `(B, L, outputs)`. Padding follows the tokens of a row."""
        x_BLD = self.tokens(tokens_BL) + self.positions(torch.arange(tokens_BL.shape[1]))
        return self.head(self.blocks(x_BLD))
