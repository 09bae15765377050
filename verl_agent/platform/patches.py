"""Patches of upstream code for which upstream has no hook, each with the line that it works around.

`value_model_attention` and `fixed_master_ports` are active on every device, the others on the CPU device only.
`verl_agent.platform.versions` rejects untested versions there, and tests/verl/platform/test_patches.py fails when an
upstream line changes.
"""

import random
from functools import partial
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
