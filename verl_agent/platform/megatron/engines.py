"""verl's Megatron engines on a CPU, with a checkpoint that torch's AdamW can be loaded from."""

from typing import Any

import torch
from typing_extensions import override
from verl.workers.engine.megatron import MegatronEngineWithLMHead, MegatronEngineWithValueHead
from verl.workers.engine.megatron.transformer_impl import MegatronEngine


class CpuMegatronEngine(MegatronEngine):
    """Part of an engine on a CPU: an optimizer that has its state before a checkpoint is loaded."""

    @override
    def load_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        """Give the optimizer a state to load into.

        Megatron-Core 0.16.1, optimizer/distrib_optimizer.py:640 reads the step of torch's AdamW, which has none before
        its first one; Transformer Engine's optimizer has. In float32 the optimizer's weights are those of the model, to
        which only code without gradients may write.
        """
        for optimizer in self.optimizer.chained_optimizers:
            if not optimizer.optimizer.state:
                make_first_step(optimizer)
            keep_step(optimizer)
        with torch.no_grad():
            super().load_checkpoint(*args, **kwargs)


class CpuMegatronLanguageEngine(CpuMegatronEngine, MegatronEngineWithLMHead):
    """Engine of a policy on a CPU."""


class CpuMegatronValueEngine(CpuMegatronEngine, MegatronEngineWithValueHead):
    """Engine of a critic on a CPU."""


def make_first_step(optimizer: Any) -> None:
    """Create the state of a Megatron optimizer by a step that changes no weight."""
    rates = [group["lr"] for group in optimizer.optimizer.param_groups]
    for group in optimizer.optimizer.param_groups:
        group["lr"] = 0.0
    optimizer._init_optimizer_states_with_dummy_values()
    for group, rate in zip(optimizer.optimizer.param_groups, rates, strict=True):
        group["lr"] = rate


def keep_step(optimizer: Any) -> None:
    """Let an optimizer load the state of torch's AdamW by parameter, each with a step of its own.

    Megatron-Core 0.16.1, optimizer/distrib_optimizer.py:940 wants the step too, which line 2101 leaves out. Line 825
    has given all parameters the same tensor, to which each of them would add 1 in an update.
    """
    if "_set_main_param_and_optimizer_states" in vars(optimizer):
        return
    upstream = optimizer._set_main_param_and_optimizer_states

    def set_state(model_param: torch.Tensor, tensors: dict[str, torch.Tensor]) -> None:
        group, order = optimizer.model_param_group_index_map[model_param]
        main_param = optimizer.optimizer.param_groups[group]["params"][order]
        state = optimizer.optimizer.state[main_param]
        state["step"] = state["step"].clone()
        upstream(model_param, {"step": state["step"], **tensors})

    optimizer._set_main_param_and_optimizer_states = set_state
