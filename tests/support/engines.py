"""verl's FSDP engines of a language model on one CPU rank, and batches of rows for them."""

import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from tensordict import TensorDict
from torch import Tensor
from torch.distributed.tensor import DTensor
from verl.trainer.config import CheckpointConfig
from verl.utils import tensordict_utils as tu
from verl.workers.config import ActorConfig, FSDPEngineConfig, FSDPOptimizerConfig, HFModelConfig
from verl.workers.engine.fsdp.transformer_impl import FSDPEngine
from verl.workers.utils.losses import ppo_loss

from verl_agent.rollout.tokens import Segment


def one_rank() -> None:
    """Make this process the only rank of a gloo process group, unless it belongs to one."""
    if not torch.distributed.is_initialized():
        file = Path(tempfile.mkdtemp(prefix="gloo-")) / "store"
        torch.distributed.init_process_group("gloo", init_method=f"file://{file}", rank=0, world_size=1)


def new_engine(
    kind: type[FSDPEngine],
    model: Path,
    dtype: str = "bfloat16",
    model_type: str = "language_model",
    lr: float = 1e-5,
    packed: bool = False,
    **settings: Any,
) -> FSDPEngine:
    """Return an engine with a model that is loaded; `packed` packs the rows of a micro-batch, as on GPUs."""
    one_rank()
    override = {"attn_implementation": "sdpa"}
    config = HFModelConfig(
        path=str(model), use_remove_padding=packed, enable_gradient_checkpointing=False, override_config=override
    )
    engine = kind(
        config,
        FSDPEngineConfig(
            strategy="fsdp2",
            use_dynamic_bsz=False,
            use_remove_padding=packed,
            mixed_precision={"param_dtype": dtype},
            use_torch_compile=False,
            **settings,
        ),
        FSDPOptimizerConfig(lr=lr, total_training_steps=10),
        CheckpointConfig(),
    )
    engine.model_config.model_type = model_type
    engine.initialize()
    return engine


def batch_of(segments: Sequence[Segment], micro_batch: int = 4, **options: Any) -> TensorDict:
    """Return rows as verl's V1 trainer gives them to an engine; advantages and old log-probs are arbitrary."""
    generator = torch.Generator().manual_seed(0)
    rows = [(torch.tensor(one.prompt_ids), torch.tensor(one.response_ids)) for one in segments]
    masks = [torch.tensor(one.response_mask) for one in segments]
    noise = [torch.randn(len(mask), generator=generator) for mask in masks]
    columns = {
        "prompts": [prompt for prompt, _ in rows],
        "responses": [response for _, response in rows],
        "input_ids": [torch.cat(row) for row in rows],
        "position_ids": [torch.arange(len(prompt) + len(response)) for prompt, response in rows],
        "response_mask": masks,
        "loss_mask": masks,
        "old_log_probs": [-1.0 + 0.1 * values for values in noise],
        "advantages": [values.flip(0) for values in noise],
    }
    if segments[0].routed_experts is not None:
        columns["routed_experts"] = [torch.as_tensor(one.routed_experts).to(torch.int16) for one in segments]
    data = TensorDict({name: jagged(values) for name, values in columns.items()}, batch_size=len(rows))
    given = {
        "use_remove_padding": False,
        "use_dynamic_bsz": False,
        "micro_batch_size_per_gpu": micro_batch,
        "temperature": 1.0,
        "global_batch_size": len(rows),
        "calculate_entropy": True,
        **options,
    }
    tu.assign_non_tensor(data, **given)
    return data


def jagged(rows: Sequence[Tensor]) -> Tensor:
    return torch.nested.as_nested_tensor(list(rows), layout=torch.jagged)


def policy_loss(**settings: Any) -> partial[Any]:
    """Return verl's loss of the actor with these settings of `ActorConfig`."""
    config = ActorConfig(strategy="fsdp", rollout_n=4, use_dynamic_bsz=True, optim=None, **settings)
    return partial(ppo_loss, config=config)


def gradients(engine: FSDPEngine, data: TensorDict, loss: partial[Any]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the gradient of each parameter after a batch, and what the engine returned."""
    engine.optimizer_zero_grad()
    with engine.train_mode():
        output = engine.forward_backward_batch(data, loss)
        found = {name: local(parameter.grad).float().clone() for name, parameter in engine.module.named_parameters()}
    return found, output


def local(tensor: Tensor) -> Tensor:
    """Return this rank's part of a tensor, which may be sharded."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def relative_difference(left: dict[str, Tensor], right: dict[str, Tensor]) -> float:
    """Return the norm of the difference of two gradients over the norm of the second."""
    difference = sum(float((left[name] - right[name]).square().sum()) for name in right)
    return float((difference / sum(float(value.square().sum()) for value in right.values())) ** 0.5)
