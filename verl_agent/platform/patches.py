"""Patches of upstream code for which upstream has no hook, each with the line that it works around.

`value_model_attention` is active on every device, the others on the CPU device only. `verl_agent.platform.versions`
rejects untested versions there, and tests/verl/test_patches.py fails when an upstream line changes.
"""

from functools import partial
from typing import Any

GLOO = "cpu:gloo"


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
