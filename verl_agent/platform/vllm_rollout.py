"""verl's vLLM rollout with a weight transfer that is separate for every run, on every device."""

from typing import Any

import ray
from verl.workers.rollout.vllm_rollout import ServerAdapter
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer, vLLMReplica

from verl_agent.platform.detect import use_cpu_device
from verl_agent.platform.weight_transfer import run_scoped_socket


class RunScopedServerAdapter(ServerAdapter):
    """Trainer's side of the transfer: sends the weights to the run's own socket."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.zmq_handle: str = run_scoped_socket(self.zmq_handle)


class RunScopedHttpServer(vLLMHttpServer):
    """vLLM's server, whose workers receive the weights through this package's worker extension."""

    def _get_worker_extension_cls(self) -> str:
        name = "CpuWorkerExtension" if use_cpu_device() else "RunScopedWorkerExtension"
        return f"verl_agent.platform.worker_extension.{name}"


class RunScopedReplica(vLLMReplica):
    """Replica that starts `RunScopedHttpServer`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.server_class = ray.remote(RunScopedHttpServer)
