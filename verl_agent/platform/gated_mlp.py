"""Gated MLP that keeps its two projections for the backward pass, and computes their product again.

The product and the activation are as large as a projection each, and cheap to compute: no matrix product is repeated.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

PROJECTIONS = ("gate_proj", "up_proj", "down_proj")


class GatedMlp(nn.Module):
    """MLP `down(silu(gate(x)) * up(x))`, which takes the place of one of transformers and has its layers."""

    gate_proj: nn.Linear
    up_proj: nn.Linear
    down_proj: nn.Linear

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the output `(..., H)` for hidden states `(..., H)`."""
        gate, up = self.gate_proj(hidden), self.up_proj(hidden)
        product: Tensor = _GatedProduct.apply(gate, up)
        gate, up, address, size = gate.detach(), up.detach(), product.data_ptr(), product.numel()

        def pack(saved: Tensor) -> Tensor | torch.Size:
            is_product = saved.data_ptr() == address and saved.numel() == size and saved.is_contiguous()
            return saved.shape if is_product else saved

        def unpack(kept: Tensor | torch.Size) -> Tensor:
            return kept if isinstance(kept, Tensor) else (functional.silu(gate) * up).view(kept)

        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            output: Tensor = self.down_proj(product)
        return output


class _GatedProduct(torch.autograd.Function):
    """Product `silu(gate) * up`, whose backward pass computes the activation again."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        """Return the product, of the shape and type of both."""
        ctx.save_for_backward(gate, up)
        return functional.silu(gate).mul_(up)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients of both factors."""
        gate, up = ctx.saved_tensors
        of_gate: Tensor = torch.ops.aten.silu_backward(gradients[0] * up, gate)
        return of_gate, functional.silu(gate).mul_(gradients[0])


def use_gated_mlps(model: nn.Module) -> None:
    """Replace the gated MLPs in a model of transformers; those that compute something else stay."""
    for mlp in model.modules():
        if all(type(getattr(mlp, name, None)) is nn.Linear for name in PROJECTIONS) and hasattr(mlp, "act_fn"):
            _replace(mlp)


def _replace(mlp: Any) -> None:
    old, weight = type(mlp), mlp.gate_proj.weight
    hidden = torch.linspace(-3, 5, 2 * weight.shape[1], dtype=weight.dtype).view(2, -1)
    with torch.no_grad():
        expected = mlp(hidden)
        mlp.__class__ = GatedMlp  # keeps the layers and their names in the state dict
        if not torch.equal(mlp(hidden), expected):
            mlp.__class__ = old
