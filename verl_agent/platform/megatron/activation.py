"""Activation of Megatron's stand-ins: only in a process that imports Megatron, and only where a run asked for them."""

import os
import sys
from typing import Any

from verl_agent.platform.after_import import after_import

STAND_INS = "VERL_AGENT_MEGATRON_ON_CPU"
"""Environment variable of all processes of a run that trains with Megatron on a CPU."""


def stand_ins_wanted() -> bool:
    """Return True if the run of this process trains with Megatron on a CPU."""
    return os.environ.get(STAND_INS) == "1"


def stand_in_when_imported() -> None:
    """Prepare the replacements; each happens when its module is imported, in this process alone."""
    after_import("megatron.core", _answer_cuda_names, before=True)
    after_import("megatron.core.jit", _disable_compilation)
    after_import("megatron.core.tensor_parallel.random", _use_random_state_of_cpu)
    after_import("megatron.core.transformer.moe.moe_utils", _route_without_gemm)
    after_import("megatron.core.models.gpt.gpt_layer_specs", _use_plain_layers)


def _answer_cuda_names() -> None:
    from verl_agent.platform.megatron.cuda_names import answer_cuda_names

    answer_cuda_names()


def _disable_compilation() -> None:
    """Leave small functions uncompiled: compiling them takes minutes on a CPU."""
    sys.modules["megatron.core.jit"].disable_jit_fuser()


def _use_random_state_of_cpu() -> None:
    """Replace the two functions that read and write CUDA's random state below `torch.cuda`.

    Megatron-Core 0.16.1, tensor_parallel/random.py:43 and :71.
    """
    import torch

    random: Any = sys.modules["megatron.core.tensor_parallel.random"]
    random._get_cuda_rng_state = lambda *_, **__: torch.get_rng_state()
    random._set_cuda_rng_state = lambda state, *_, **__: torch.set_rng_state(state)


def _route_without_gemm() -> None:
    """Say that the router of experts has no product of Transformer Engine.

    Megatron-Core 0.16.1, transformer/moe/moe_utils.py:1192 reads a name that line 39 leaves undefined without it.
    """
    utils: Any = sys.modules["megatron.core.transformer.moe.moe_utils"]
    utils.te_general_gemm = None


def _use_plain_layers() -> None:
    """Let Megatron's specification of a decoder layer name this package's layers.

    Megatron-Core 0.16.1, models/gpt/gpt_layer_specs.py:42-50 takes the names from Transformer Engine, or has none.
    """
    specs: Any = sys.modules["megatron.core.models.gpt.gpt_layer_specs"]
    from verl_agent.platform.megatron.layers import Norm, PlainSpecProvider

    specs.TESpecProvider, specs.TENorm, specs.HAVE_TE = PlainSpecProvider, Norm, True
