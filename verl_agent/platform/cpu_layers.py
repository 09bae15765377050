"""Norms and MLPs that take the place of those of transformers, and keep less for the backward pass.

transformers computes an RMS norm in five operations and in float32. Autocast then casts the result for each product
(three of attention, two of the MLP), and the backward pass needs all of these. Here it needs the input, which is the
residual stream and is kept anyway, and one result for all products, in their precision.

The gated MLP keeps its two projections, and computes their product and the activation again. Both are as large as a
projection each, and cheap to compute: no matrix product is repeated.

Shape suffixes: H hidden units.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

NORMS = ("input_layernorm", "post_attention_layernorm")
"""Names of the norms in front of attention and MLP, in a layer without norms behind these."""
OTHER_NORMS = ("pre_feedforward_layernorm", "post_feedforward_layernorm")
"""Names of norms in layers whose `post_attention_layernorm` goes to the residual stream, which stays in float32."""
PROJECTIONS = ("gate_proj", "up_proj", "down_proj")


class InputNorm(nn.Module):
    """RMS norm that returns the type of autocast, or that of its input without autocast.

    It takes the place of a norm of transformers and shares its parameter.

    Attributes:
        weight: float32 `(H,)`.
    """

    weight: Tensor
    variance_epsilon: float

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the norm of hidden states `(..., H)`."""
        device = hidden.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
        result: Tensor = _RootMeanSquare.apply(hidden, self.weight, self.variance_epsilon, dtype)
        return result


class _RootMeanSquare(torch.autograd.Function):
    """RMS norm in float32; the backward pass computes the normalized values again."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight_H: Tensor, epsilon: float, dtype: torch.dtype) -> Tensor:
        """Return `weight * hidden / rms`, of type `dtype`."""
        scale = (torch.linalg.vector_norm(hidden.float(), dim=-1, keepdim=True).square_() / hidden.shape[-1]).add_(
            epsilon
        )
        scale = scale.rsqrt_()
        ctx.save_for_backward(hidden, weight_H, scale)
        return (hidden.float() * scale).mul_(weight_H).to(dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of hidden states and weight."""
        hidden, weight_H, scale = ctx.saved_tensors
        normalized, gradient = hidden.float() * scale, gradients[0].float()
        weight_gradient = None
        if ctx.needs_input_grad[1]:
            weight_gradient = (gradient * normalized).flatten(0, -2).sum(0).to(weight_H.dtype)
        inner = gradient * weight_H
        mean = (inner * normalized).mean(-1, keepdim=True)
        hidden_gradient = inner.sub_(normalized.mul_(mean)).mul_(scale).to(hidden.dtype)
        return hidden_gradient, weight_gradient, None, None


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


def use_cpu_layers(model: nn.Module) -> None:
    """Replace norms in front of products and gated MLPs in a model of transformers; what computes otherwise stays."""
    for layer in model.modules():
        norms: list[Any] = [getattr(layer, name, None) for name in NORMS]
        if None not in norms and not any(hasattr(layer, name) for name in OTHER_NORMS):
            for norm in norms:
                if hasattr(norm, "variance_epsilon") and [name for name, _ in norm.named_parameters()] == ["weight"]:
                    _replace(norm, InputNorm, norm.weight, lambda now, before: torch.allclose(now, before, rtol=1e-4))
        if all(type(getattr(layer, name, None)) is nn.Linear for name in PROJECTIONS) and hasattr(layer, "act_fn"):
            mlp: Any = layer
            _replace(mlp, GatedMlp, mlp.gate_proj.weight, torch.equal)


def _replace(layer: Any, kind: type[nn.Module], weight: Tensor, same: Callable[[Tensor, Tensor], bool]) -> None:
    """Change the class of a layer, which keeps parameters and their names, if its output stays the same."""
    old, hidden = type(layer), torch.linspace(-3, 5, 2 * weight.shape[-1], dtype=weight.dtype).view(2, -1)
    with torch.no_grad():
        expected = layer(hidden)
        layer.__class__ = kind
        if not same(layer(hidden), expected):
            layer.__class__ = old
