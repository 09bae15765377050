"""RMS norms in front of matrix products, in the precision of the latter.

transformers computes the norm in five operations and in float32. Autocast then casts the result for each product (three
of attention, two of the MLP), and the backward pass needs all of these. Here it needs the input, which is the residual
stream and is kept anyway, and one result for all products.

Shape suffixes: H hidden units.
"""

from typing import Any

import torch
from torch import Tensor, nn

NORMS = ("input_layernorm", "post_attention_layernorm")
"""Names of the norms in front of attention and MLP, in a layer without norms behind these."""
OTHER_NORMS = ("pre_feedforward_layernorm", "post_feedforward_layernorm")
"""Names of norms in layers whose `post_attention_layernorm` goes to the residual stream, which stays in float32."""


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


def use_input_norms(model: nn.Module) -> None:
    """Replace the norms in front of products in a model of transformers; norms that compute something else stay."""
    for layer in model.modules():
        norms = [getattr(layer, name, None) for name in NORMS]
        if None in norms or any(hasattr(layer, name) for name in OTHER_NORMS):
            continue
        for norm in norms:
            _replace(norm)


def _replace(norm: Any) -> None:
    if not hasattr(norm, "variance_epsilon") or [name for name, _ in norm.named_parameters()] != ["weight"]:
        return
    old, hidden = type(norm), torch.linspace(-3, 5, 2 * len(norm.weight), dtype=norm.weight.dtype).view(2, -1)
    with torch.no_grad():
        expected = norm(hidden)
        norm.__class__ = InputNorm  # keeps the parameter and its name in the state dict
        if not torch.allclose(norm(hidden), expected, rtol=1e-4):
            norm.__class__ = old
