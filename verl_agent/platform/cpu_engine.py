"""verl's FSDP engines on a CPU, without the work that changes neither loss nor metrics.

On a GPU verl packs the tokens of all rows. Without packed attention it pads each micro-batch to its longest row, gives
attention a dense mask, and computes the logits of all tokens. These engines compute a beginning that rows share once
(`token_tree`), leave out rows without loss, and compute log-probs of the tokens in the loss only (`log_prob_head`).
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor
from torch.distributed.tensor import DTensor
from typing_extensions import override
from verl.utils import tensordict_utils as tu
from verl.utils.fsdp_utils import fsdp_version
from verl.utils.torch_dtypes import PrecisionType
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead, FSDPEngineWithValueHead
from verl.workers.engine.utils import postprocess_batch_func

from verl_agent.platform.cpu_layers import use_cpu_layers
from verl_agent.platform.log_prob_head import LogProbHead, padded_places, predicting, returns_output_of, targets
from verl_agent.platform.memory import trim_heap
from verl_agent.platform.micro_batches import split_micro_batches
from verl_agent.platform.resharding import ReshardingEngine
from verl_agent.platform.token_tree import TokenTree
from verl_agent.platform.tree_attention import NAME as ATTENTION
from verl_agent.platform.tree_attention import allows_trees, mask_of, use_float32_attention
from verl_agent.platform.weight_transfer import repeated_parameters

logger = logging.getLogger(__name__)

ALL_LOGITS = ("use_fused_kernels", "distillation_use_topk", "calculate_sum_pi_squared")
"""Options of verl that need the logits of all tokens, or do without them in another way."""


class CpuEngine(ReshardingEngine):
    """Part of an engine on a CPU: micro-batches of `split_micro_batches`, and float32 outside of matrix products."""

    shares = False
    """Beginnings that rows of a micro-batch share are computed once."""
    engine_config: Any
    device_mesh: Any
    scaler: Any = None

    @override
    def _build_module(self) -> Any:
        """Replace attention, norms and MLPs by ones that need less.

        Every rank loads the weights, with which replacements are checked. verl loads them on the first rank of the mesh
        alone, unless embedding and output layer are one.
        """
        mesh, self.device_mesh = self.device_mesh, SimpleNamespace(get_coordinate=lambda: (0,))
        try:
            module = super()._build_module()
        finally:
            self.device_mesh = mesh
        use_float32_attention(module)
        use_cpu_layers(module)
        return module

    @override
    def _build_fsdp_module(self, module: Any) -> Any:
        """Weights and sums of layers stay in float32, and products have `param_dtype` by autocast.

        With `param_dtype: bfloat16` in FSDP, the residual stream of SmolLM2-135M, which reaches 25,000 at the first
        tokens, has 8 bits. Log-probs then differ from those in float32 by twice as much.

        A model on one rank stays as it is. FSDP would have nothing to shard, but would copy all weights in each pass
        and all gradients in each backward pass.
        """
        settings = self.engine_config.mixed_precision or {}
        wanted = PrecisionType.to_dtype(settings.get("param_dtype", "bf16"))
        if self._fits_one_rank() and wanted != torch.float16:
            self._autocast_dtype = wanted
            module.register_load_state_dict_pre_hook(lambda _, state, *__: gather(state))
            return module
        if wanted == torch.bfloat16:
            precise = {**settings, "param_dtype": "fp32"}
            self.engine_config = replace(self.engine_config, mixed_precision=precise)
        module = super()._build_fsdp_module(module)
        self._autocast_dtype = wanted
        return module

    @override
    def _build_optimizer(self, module: Any) -> Any:
        optimizer = super()._build_optimizer(module)
        if fsdp_version(module) == 0:
            optimizer.register_load_state_dict_pre_hook(gather_moments)
        return optimizer

    def _fits_one_rank(self) -> bool:
        """Return True if nothing needs FSDP: neither several ranks nor features that verl builds on its modules."""
        config, model = self.engine_config, self.model_config
        wrapped = config.offload_policy or self._is_lora or model.enable_activation_offload
        return torch.distributed.get_world_size() == 1 and config.strategy == "fsdp2" and not wrapped

    @override
    def forward_backward_batch(
        self, data: TensorDict, loss_function: Callable[..., Any], forward_only: bool = False
    ) -> Any:
        """Compute the batch as verl does, in other micro-batches: the largest first, while memory is unbroken.

        verl 0.9.1, workers/engine/fsdp/transformer_impl.py:724 can only make micro-batches of equally many rows.
        """
        if tu.get_non_tensor_data(data=data, key="use_dynamic_bsz", default=True):
            return super().forward_backward_batch(data, loss_function, forward_only)
        self._count(data)
        whole = forward_only or tu.get_non_tensor_data(data=data, key="return_model_output", default=False)
        # Several ranks gather their shards in each pass, so all of them need equally many passes.
        several = self.get_data_parallel_size() > 1
        groups = split_micro_batches(
            data, self.shares, whole or several, self.get_data_parallel_group() if several else None
        )
        outputs = []
        with kept_casts(), torch.set_grad_enabled(not forward_only):
            for number, rows in enumerate(groups, 1):
                last = forward_only or number == len(groups)
                with self._gradient_sync_context(is_last_micro_batch=last):
                    outputs.append(self._pass(tu.index_select_tensor_dict(data, rows), loss_function, forward_only))
                if not whole:
                    outputs[-1].pop("model_output")
        output = postprocess_batch_func(output_lst=outputs, indices=None, data=data)
        for name, nested in output["model_output"].items():
            rows = nested.unbind()
            order = torch.cat(groups).argsort()
            output["model_output"][name] = tu.nested_tensor_from_tensor_list([rows[row] for row in order])
        return output

    def _count(self, data: TensorDict) -> None:
        """Note what verl's losses divide by."""
        tokens = data["loss_mask"].sum()
        torch.distributed.all_reduce(tokens, group=self.get_data_parallel_group())
        counts = {"batch_num_tokens": tokens.item(), "dp_size": self.get_data_parallel_size()}
        tu.assign_non_tensor(data, sp_size=self.ulysses_sequence_parallel_size, **counts)

    def _pass(self, micro_batch: TensorDict, loss_function: Callable[..., Any], forward_only: bool) -> dict[str, Any]:
        """Return the outputs of a micro-batch, after its backward pass unless `forward_only`."""
        loss, output = self.forward_step(micro_batch, loss_function, forward_only)
        if not forward_only:
            (self.scaler.scale(loss) if self.scaler is not None else loss).backward()
        return dict(output)

    @override
    def get_per_tensor_param(self, *args: Any, **kwargs: Any) -> Any:
        """Leave out repeated parameters, which the rollout engine ties by the model's config, too."""
        weights, peft_config = super().get_per_tensor_param(*args, **kwargs)
        repeated = repeated_parameters(self.module)
        return ((name, weight) for name, weight in weights if name not in repeated), peft_config

    @override
    def forward_step(self, micro_batch: TensorDict, loss_function: Callable[..., Any], forward_only: bool) -> Any:
        """Activations of the last pass leave gaps between gradients, which this one rarely fits."""
        trim_heap()
        return super().forward_step(micro_batch, loss_function, forward_only)

    @override
    def optimizer_step(self) -> float:
        """Free gradients and activations, so that the rollout engine can use their memory."""
        norm: float = super().optimizer_step()
        self.optimizer_zero_grad()
        trim_heap()
        return norm

    @override
    def prepare_model_inputs(self, micro_batch: TensorDict) -> tuple[dict[str, Any], dict[str, Any]]:
        """Tokens of a row never attend to the padding behind them, so no mask is needed."""
        inputs, output_args = super().prepare_model_inputs(micro_batch)
        if not _packed(micro_batch) and inputs["position_ids"].dim() == 2:
            inputs["attention_mask"] = None
            del inputs["position_ids"]  # they count from 0, as without them, and their padding looks like packed rows
        return inputs, output_args


class CpuValueEngine(CpuEngine, FSDPEngineWithValueHead):
    """Engine of a critic on a CPU."""


class CpuLanguageEngine(CpuEngine, FSDPEngineWithLMHead):
    """Engine of a policy on a CPU, with log-probs and entropies of the tokens in the loss, in float32."""

    _head: LogProbHead | None = None

    @override
    def _build_module(self) -> Any:
        """Replace the output layer."""
        module = super()._build_module()
        head = None if self.model_config.use_fused_kernels else LogProbHead.take_place(module)
        if head is not None and returns_output_of(module, head):
            self._head = head
            self.shares = module.config._attn_implementation == ATTENTION and allows_trees(module)
        return module

    @override
    def prepare_model_inputs(self, micro_batch: TensorDict) -> tuple[dict[str, Any], dict[str, Any]]:
        """Choose the tokens of the next pass: those of the tree of rows, and of these the ones in front of the loss."""
        inputs, output_args = super().prepare_model_inputs(micro_batch)
        if self._head is None or self._needs_logits(micro_batch):
            if self._head is not None:
                self._head.targets = None
            return inputs, output_args
        places = padded_places(micro_batch)
        if self.shares and set(inputs) == {"input_ids", "attention_mask"}:
            tree = TokenTree.of(micro_batch["input_ids"].unbind())
            inputs = {
                "input_ids": tree.ids_U[None],
                "position_ids": tree.depths_U[None],
                "attention_mask": mask_of(tree),
            }
            places = tree.places_T
        self._head.targets, output_args["targets"] = targets(micro_batch, output_args, places)
        return inputs, output_args

    @override
    def prepare_model_outputs(
        self, output: Any, output_args: dict[str, Any], micro_batch: TensorDict, logits_processor_func: Any
    ) -> dict[str, Tensor]:
        """Return `log_probs` and, if asked for, `entropy`, float32 jagged `(B, T)` in nats.

        Entry t belongs to token t + 1, and is 0 if that token is not in the loss.
        """
        if self._head is None or self._head.targets is None:
            theirs: dict[str, Tensor] = super().prepare_model_outputs(
                output, output_args, micro_batch, logits_processor_func
            )
            return theirs
        names = ["log_probs"]
        if tu.get_non_tensor_data(data=micro_batch, key="calculate_entropy", default=False):
            names.append("entropy")
        ids, chosen = micro_batch["input_ids"], predicting(micro_batch).nonzero()[:, 0]
        result = {}
        for name, values_N in zip(names, output.logits.unbind(-1), strict=False):
            flat = torch.zeros(len(ids.values())).index_copy(0, chosen, values_N[output_args["targets"]])
            result[name] = torch.nested.nested_tensor_from_jagged(flat, ids.offsets())
        return result

    def _needs_logits(self, micro_batch: TensorDict) -> bool:
        asked = any(tu.get_non_tensor_data(data=micro_batch, key=name, default=False) for name in ALL_LOGITS)
        mask = micro_batch.get("response_mask", None)
        return asked or _packed(micro_batch) or (mask is not None and not mask.is_nested)


def gather(state: dict[str, Any]) -> None:
    """Replace the sharded tensors of a checkpoint, which FSDP on one GPU writes too, by whole ones."""
    state.update({name: value.full_tensor() for name, value in state.items() if isinstance(value, DTensor)})


def gather_moments(_: object, state: dict[str, Any]) -> None:
    """Apply `gather` to the state dict of an optimizer, before the latter loads it."""
    for one in state["state"].values():
        gather(one)


@contextmanager
def kept_casts() -> Iterator[None]:
    """Keep autocast's copies of weights in the lower precision for a block of code, which must not change weights.

    Each micro-batch has an autocast of its own, at whose end torch would free the copies. They are in use until the
    end of the backward pass anyway, so that keeping them takes no memory.
    """
    torch.autocast_increment_nesting()
    try:
        yield
    finally:
        if torch.autocast_decrement_nesting() == 0:
            torch.clear_autocast_cache()


def _packed(micro_batch: TensorDict) -> bool:
    return bool(tu.get_non_tensor_data(data=micro_batch, key="use_remove_padding", default=True))
