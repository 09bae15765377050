"""Extensions of vLLM's workers that receive new weights from verl; loaded inside the engine's process."""

from typing import Any

import torch
from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension

from verl_agent.platform.detect import use_cpu_device
from verl_agent.platform.memory import release_pages, trim_heap
from verl_agent.platform.patches import capture_experts, keep_unpacked_weights, repack_experts
from verl_agent.platform.seeded_sampling import SeededSampling
from verl_agent.platform.weight_transfer import run_scoped_socket

if use_cpu_device():
    keep_unpacked_weights()
    repack_experts()
    capture_experts()


class RunScopedWorkerExtension(vLLMColocateWorkerExtension, SeededSampling):
    """Engine's side of the transfer: receives the weights from the run's own socket."""

    def _get_zmq_handle(self) -> str:
        return run_scoped_socket(super()._get_zmq_handle())


class CpuWorkerExtension(RunScopedWorkerExtension):
    """Worker extension for the CPU."""

    def update_weights_from_ipc(self, *args: Any, **kwargs: Any) -> Any:
        """Receive weights into the CPU device, which has no index.

        There a bucket's tensors are views of shared memory (verl 0.9.1, bucketed_weight_transfer.py:297), which vLLM
        copies into its parameters. A parameter that is a view keeps the receiver from closing that memory.
        """
        self.device = torch.device("cpu")
        try:
            return super().update_weights_from_ipc(*args, **kwargs)
        finally:
            trim_heap()

    def release_cache(self) -> None:
        """Free the memory of the KV cache, whose values are lost; no request and no cached prefix may need them."""
        for layer in self.model_runner.kv_caches:
            for cache in [layer] if isinstance(layer, torch.Tensor) else layer:  # state-space layers have several
                release_pages(cache)
        trim_heap()
