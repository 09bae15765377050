"""Settings of verl's Megatron engine on a CPU (`_target_` of the sections `megatron`)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from verl.workers.config import McoreEngineConfig

NO_FUSIONS: Mapping[str, bool] = dict.fromkeys(
    (
        *("gradient_accumulation_fusion", "masked_softmax_fusion", "bias_activation_fusion"),
        *("bias_dropout_fusion", "apply_rope_fusion"),
    ),
    False,
)
"""Kernels of Megatron that exist for CUDA alone, all switched off."""
FLOAT32 = ("float32", "fp32")


@dataclass
class CpuMcoreEngineConfig(McoreEngineConfig):
    """`McoreEngineConfig` without CUDA's fused kernels, which also allows `dtype: float32`."""

    def __post_init__(self) -> None:
        """Check the settings as verl does, except for the dtype: verl has no other than 16 bits."""
        wanted = self.dtype
        if wanted in FLOAT32:
            self._set("dtype", "bfloat16")
        super().__post_init__()
        self._set("dtype", wanted)
        self._set("override_transformer_config", {**self.override_transformer_config, **NO_FUSIONS})

    def _set(self, name: str, value: Any) -> None:
        """Set a field that verl freezes."""
        object.__setattr__(self, name, value)
