"""Patches of upstream code for which upstream has no hook, each with the line that it works around.

`value_model_attention`, `fixed_master_ports` and `skip_engine_of_ascend` are active on every device, the others on the
CPU device only.
`verl_agent.platform.versions` rejects untested versions there, and tests/verl/platform/test_patches.py fails when an
upstream line changes.
"""

import random
import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from verl_agent.platform.after_import import after_import
from verl_agent.platform.weight_transfer import create_memory, open_memory

GLOO = "cpu:gloo"
FIRST_PORT = 20_000
"""First port for process groups; Ray's workers have those below."""
EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")


def one_backend_per_device() -> None:
    """Name the CPU once in the backends of verl's process groups.

    verl 0.9.1, utils/distributed.py:63 and :89 build `cpu:gloo,{device}:{backend}`. On the CPU device that is
    `cpu:gloo,cpu:gloo`, which torch.distributed rejects as a duplicate.
    """
    import torch.distributed
    from verl.utils import distributed

    upstream = torch.distributed.init_process_group

    def init_process_group(backend: str | None = None, *args: Any, **kwargs: Any) -> None:
        upstream(GLOO if backend == f"{GLOO},{GLOO}" else backend, *args, **kwargs)

    torch.distributed.init_process_group = init_process_group
    distributed.initialize_global_process_group_ray = partial(
        distributed.initialize_global_process_group_ray, backend=GLOO
    )


def value_model_attention() -> None:
    """Load the critic's model with the attention of its config (`critic.model.override_config.attn_implementation`).

    verl 0.9.1, utils/model.py:649 has `attn_implementation="flash_attention_2"` as a literal, which fails where
    flash-attn is not installed and ignores the setting elsewhere.
    """
    import verl.utils.model
    from transformers import AutoModelForTokenClassification

    def load_valuehead_model(local_path: str, torch_dtype: Any, model_config: Any, trust_remote_code: bool) -> Any:
        return AutoModelForTokenClassification.from_pretrained(
            local_path,
            dtype=torch_dtype,
            config=model_config,
            attn_implementation=model_config._attn_implementation,
            trust_remote_code=trust_remote_code,
        )

    verl.utils.model.load_valuehead_model = load_valuehead_model


def fixed_master_ports() -> None:
    """Choose the port of a process group outside the kernel's ephemeral port range.

    verl 0.9.1, single_controller/ray/base.py:96 takes a port that is free now and listens on it up to a minute later.
    The kernel may have given it to another program by then, and the run ends with `address already in use`. verl has
    a range of ports as an argument, but no setting for it.
    """
    after_import("verl.single_controller.ray.base", _fix_master_ports)


def _fix_master_ports() -> None:
    from verl.single_controller.ray.base import RayWorkerGroup

    upstream = RayWorkerGroup._get_master_addr_port

    def choose(self: Any, pg: Any, bundle_index: int = 0, master_port_range: list[int] | None = None) -> None:
        upstream(self, pg, bundle_index, master_port_range or master_ports())

    RayWorkerGroup._get_master_addr_port = choose


def master_ports(ephemeral: Path = EPHEMERAL) -> list[int] | None:
    """Return first port and end (exclusive) of a range below the kernel's ephemeral port range.

    The first port is random, so that two runs on a machine rarely try the same one.

    Returns:
        None if the file is missing or too few ports lie below the ephemeral range; verl then takes any free port.
    """
    if not ephemeral.is_file():
        return None
    end = int(ephemeral.read_text().split()[0])  # of this machine; those of a cluster are usually set up alike
    return [random.randrange(FIRST_PORT, end - 1000), end] if end > FIRST_PORT + 2000 else None


def skip_engine_of_ascend() -> None:
    """Leave out verl's checkpoint engine of Ascend NPUs on machines without them; verl expects that it does not import.

    verl 0.9.1, checkpoint_engine/hccl_checkpoint_engine.py:23 imports vLLM before line 36 looks for an NPU. That takes
    seconds of each agent-loop worker, which needs no vLLM.
    """
    if find_spec("torch_npu") is None:
        sys.modules["verl.checkpoint_engine.hccl_checkpoint_engine"] = None  # type: ignore[assignment]


def keep_unpacked_weights() -> None:
    """Keep the storage of the weights that vLLM packs, because weight updates write to it.

    vLLM 0.28.0, model_executor/layers/linear.py:202 calls `dispatch_cpu_unquantized_gemm(layer,
    remove_weight=True)`, which replaces `layer.weight` by an empty tensor. Here the parameter stays, without its values
    and their memory: an update writes all of them before vLLM packs them again.
    """
    from vllm.model_executor.layers import utils

    from verl_agent.platform.memory import release_pages

    upstream = utils.dispatch_cpu_unquantized_gemm

    def dispatch(layer: Any, remove_weight: bool) -> None:
        weight = layer.weight
        upstream(layer, remove_weight)
        if layer.weight is not weight:  # packed and removed
            layer.weight = weight
            release_pages(weight)

    utils.dispatch_cpu_unquantized_gemm = dispatch


def repack_experts() -> None:
    """Pack the weights of experts again after each update, as after the first load.

    vLLM 0.28.0, model_executor/layers/fused_moe/unquantized_fused_moe_method.py:166 packs them at the first load only.
    The kernel then reads new weights in the layout of packed ones, and the engine samples from another policy.
    """
    from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import (
        UnquantizedFusedMoEMethod,
        UnquantizedMoeBackend,
    )

    upstream = UnquantizedFusedMoEMethod._setup_kernel

    def set_up(self: Any, layer: Any, *weights: Any, **named: Any) -> None:
        is_update = self.moe_kernel is not None
        upstream(self, layer, *weights, **named)
        if is_update and self.unquantized_backend == UnquantizedMoeBackend.CPU:
            self.moe_kernel.fused_experts.process_weights_after_loading(layer)

    UnquantizedFusedMoEMethod._setup_kernel = set_up


def capture_experts() -> None:
    """Let vLLM's experts for CPUs return their choice (`enable_return_routed_experts`), as those for GPUs do.

    vLLM 0.28.0, model_executor/layers/fused_moe/routed_experts_capturer.py:289 refuses kernels that choose the experts
    themselves. `experts/cpu_moe.py:133` takes those with the largest logits, unless they are in groups.
    """
    from vllm.model_executor.layers.fused_moe.experts.cpu_moe import CPUUnquantizedExperts

    upstream = CPUUnquantizedExperts.apply

    def apply(self: Any, *, router_logits: Any, **inputs: Any) -> Any:
        if self.routing_replay_capture_fn is not None:
            chosen = router_logits.topk(self.moe_config.experts_per_token, dim=-1, sorted=False)[1]
            self.routing_replay_capture_fn(chosen)
        return upstream(self, router_logits=router_logits, **inputs)

    def supports_capture(self: Any) -> bool:
        return not self.use_grouped_topk and self.custom_routing_function is None

    CPUUnquantizedExperts.apply = apply
    CPUUnquantizedExperts.supports_routing_replay_capture = supports_capture


def memory_of_transfers() -> None:
    """Transfer weights through files where `/dev/shm` has no room, as in a container with Docker's default of 64 MB.

    verl 0.9.1, workers/rollout/vllm_rollout/bucketed_weight_transfer.py:58 and :67 know shared memory alone. A trainer
    that writes more than fits is killed by SIGBUS.
    """
    after_import("verl.workers.rollout.vllm_rollout.bucketed_weight_transfer", _replace_memory_of_transfers)


def _replace_memory_of_transfers() -> None:
    import torch
    from verl.workers.rollout.vllm_rollout import bucketed_weight_transfer

    def rebuild(name: str, size: int, dtype: torch.dtype = torch.uint8) -> tuple[torch.Tensor, Any]:
        memory = open_memory(name)
        assert memory.buf is not None  # it is open
        return torch.frombuffer(memory.buf[:size], dtype=dtype), memory

    bucketed_weight_transfer.create_shared_memory = create_memory
    bucketed_weight_transfer.rebuild_shared_memory = rebuild
