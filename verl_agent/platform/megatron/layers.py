"""Layers of Transformer Engine that decoders use, also those with experts, in plain PyTorch.

They have the parameters and calls of Transformer Engine's, so Megatron's own specification of a layer uses them:
weights have the same names, and the same bridges to Hugging Face's weights read them.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core.models.backends import BackendSpecProvider
from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer.mlp import MLPSubmodules
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.moe.experts import TEGroupedMLP
from megatron.core.transformer.utils import make_sharded_tensors_for_checkpoint
from torch import Tensor
from typing_extensions import override


class Norm(torch.nn.Module):
    """RMSNorm or LayerNorm of the last dimension (`TENorm`)."""

    def __init__(self, config: Any, hidden_size: int, eps: float = 1e-5, **_: Any) -> None:
        super().__init__()
        self.eps, self.is_rms = eps, config.normalization == "RMSNorm"
        self.weight = torch.nn.Parameter(torch.ones(hidden_size, dtype=config.params_dtype))
        self.weight.sequence_parallel = config.sequence_parallel  # Megatron sums such gradients over the ranks
        if not self.is_rms:
            self.bias = torch.nn.Parameter(torch.zeros(hidden_size, dtype=config.params_dtype))
            self.bias.sequence_parallel = config.sequence_parallel

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the normalized inputs; shape and dtype stay."""
        shape = (inputs.shape[-1],)
        if self.is_rms:
            return F.rms_norm(inputs, shape, self.weight, self.eps)
        return F.layer_norm(inputs, shape, self.weight, self.bias, self.eps)


class NormColumnParallelLinear(ColumnParallelLinear):
    """RMSNorm and a linear layer whose outputs are split over ranks (`TELayerNormColumnParallelLinear`)."""

    def __init__(self, input_size: int, output_size: int, *, config: Any, **options: Any) -> None:
        super().__init__(input_size, output_size, config=config, **options)
        if config.normalization != "RMSNorm":
            raise NotImplementedError(f"Megatron on a CPU has only RMSNorm, not {config.normalization}.")
        self.layer_norm_weight = torch.nn.Parameter(torch.ones(input_size, dtype=config.params_dtype))
        self.layer_norm_weight.sequence_parallel = config.sequence_parallel
        self.eps = config.layernorm_epsilon

    @override
    def forward(self, inputs: Tensor, *args: Any, **kwargs: Any) -> Any:
        normal = F.rms_norm(inputs, (inputs.shape[-1],), self.layer_norm_weight, self.eps)
        return super().forward(normal, *args, **kwargs)

    def sharded_state_dict(
        self, prefix: str = "", sharded_offsets: tuple[Any, ...] = (), metadata: dict[str, Any] | None = None
    ) -> Any:
        """Return the shards of the weights for a checkpoint; the norm's weight is the same on all ranks."""
        state = self.state_dict(prefix="", keep_vars=True)
        return make_sharded_tensors_for_checkpoint(state, prefix, {"weight": 0, "bias": 0}, sharded_offsets)


class GroupedLinear(torch.nn.Module):
    """A linear layer of each expert (`TEColumnParallelGroupedLinear`, `TERowParallelGroupedLinear`)."""

    def __init__(
        self,
        num_gemms: int,
        input_size: int,
        output_size: int,
        *,
        config: Any,
        init_method: Callable[[Tensor], Any],
        **_: Any,
    ) -> None:
        super().__init__()
        if config.expert_model_parallel_size != 1 or config.expert_tensor_parallel_size != 1:
            raise NotImplementedError("Megatron on a CPU has all experts on each rank.")
        for expert in range(num_gemms):
            weight = torch.nn.Parameter(torch.empty(output_size, input_size, dtype=config.params_dtype))
            init_method(weight)
            self.register_parameter(f"weight{expert}", weight)

    def forward(self, inputs: Tensor, tokens: list[int]) -> tuple[Tensor, None]:
        """Return the outputs `(T, D)` of inputs that are sorted by expert, `tokens` of each; and no bias."""
        parts = zip(inputs.split(tokens), self.parameters(), strict=True)
        return torch.cat([F.linear(part, weight) for part, weight in parts]), None

    def sharded_state_dict(
        self, prefix: str = "", sharded_offsets: tuple[Any, ...] = (), metadata: dict[str, Any] | None = None
    ) -> Any:
        """Return the weights for a checkpoint; each rank has all of them."""
        return make_sharded_tensors_for_checkpoint(self.state_dict(keep_vars=True), prefix, {}, sharded_offsets)


class CausalAttention(MegatronModule):
    """Causal self-attention on packed and padded batches (`TEDotProductAttention`)."""

    def __init__(
        self,
        config: Any,
        layer_number: int,
        attn_mask_type: Any,
        attention_type: str,
        softmax_scale: float | None = None,
        **_: Any,
    ) -> None:
        super().__init__(config=config)
        if config.context_parallel_size != 1 or attention_type != "self":
            raise NotImplementedError("Megatron on a CPU has neither context parallelism nor cross attention.")
        self.scale = softmax_scale

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        attn_mask_type: Any = None,
        attention_bias: Tensor | None = None,
        packed_seq_params: Any = None,
        **_: Any,
    ) -> Tensor:
        """Return the attention of each token to those before it in its row.

        Args:
            query: `(tokens, heads, D)` in a packed batch, else `(T, B, heads, D)` padded behind each row.
            key: as `query`, with `groups` in place of `heads`.
            value: as `key`.
            attention_mask: ignored; no token attends to the padding behind it.
            attn_mask_type: ignored; always causal.
            attention_bias: ignored; no model of the bridges has one.
            packed_seq_params: ends of the rows in a packed batch; None in a padded one.

        Returns:
            `(tokens, heads * D)` or `(T, B, heads * D)`.
        """
        if packed_seq_params is None:
            query, key, value = (states.permute(1, 2, 0, 3) for states in (query, key, value))
            return self._attend(query, key, value).permute(2, 0, 1, 3).flatten(2)
        padded = packed_seq_params.cu_seqlens_q_padded
        ends = packed_seq_params.cu_seqlens_q if padded is None else padded
        lengths = ends.diff().tolist()
        rows = zip(*(states.split(lengths) for states in (query, key, value)), strict=True)
        return torch.cat([self._attend_row(*row) for row in rows])

    def _attend_row(self, *states: Tensor) -> Tensor:
        query, key, value = (each.transpose(0, 1)[None] for each in states)
        return self._attend(query, key, value)[0].transpose(0, 1).flatten(1)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Return attention `(B, heads, T, D)`; a group of query heads may share a key head."""
        shared = query.shape[1] != key.shape[1]
        return F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=self.scale, enable_gqa=shared)


class PlainSpecProvider(BackendSpecProvider):
    """Provider of the layers above in place of Transformer Engine's (`TESpecProvider`)."""

    def linear(self) -> type:
        """Raise an error: only models with latent attention need it."""
        raise NotImplementedError("Megatron on a CPU has no latent attention (MLA).")

    def column_parallel_linear(self) -> type:
        """Return the linear layer whose outputs are split."""
        return ColumnParallelLinear  # type: ignore[no-any-return]

    def row_parallel_linear(self) -> type:
        """Return the linear layer whose inputs are split."""
        return RowParallelLinear  # type: ignore[no-any-return]

    def fuse_layernorm_and_linear(self) -> bool:
        """Return True, as for Transformer Engine."""
        return True

    def column_parallel_layer_norm_linear(self) -> type:
        """Return the layer with a norm in front."""
        return NormColumnParallelLinear

    def layer_norm(self, rms_norm: bool = False, for_qk: bool = False, **_: Any) -> type:
        """Return the norm."""
        return Norm

    def core_attention(self) -> type:
        """Return the attention."""
        return CausalAttention

    def activation_func(self) -> None:
        """Return None: the activation is the config's."""

    def grouped_mlp_modules(self, *_: Any) -> tuple[type, Any]:
        """Return experts that are computed one after another.

        Their weights have the names of Transformer Engine's, which are the only ones that mbridge knows.
        """
        return TEGroupedMLP, MLPSubmodules(linear_fc1=GroupedLinear, linear_fc2=GroupedLinear)
