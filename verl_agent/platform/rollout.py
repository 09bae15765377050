"""verl's vLLM rollout replica, with the worker extension of the CPU device."""

from typing import Any

import ray
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer, vLLMReplica


class CpuHttpServer(vLLMHttpServer):
    """vLLM's server, whose workers load our extension."""

    def _get_worker_extension_cls(self) -> str:
        return "verl_agent.platform.worker_extension.CpuWorkerExtension"


class CpuReplica(vLLMReplica):
    """A replica that starts `CpuHttpServer`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.server_class = ray.remote(CpuHttpServer)
