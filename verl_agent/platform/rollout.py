"""verl's vLLM rollout with weights handed over by the run's own socket, on every device."""

from typing import Any

import ray
from verl.workers.rollout.vllm_rollout import ServerAdapter
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer, vLLMReplica

from verl_agent.platform.detect import use_cpu_device
from verl_agent.platform.weight_transfer import run_scoped_socket


class RunScopedServerAdapter(ServerAdapter):
    """The trainer's side, which sends the weights."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.zmq_handle: str = run_scoped_socket(self.zmq_handle)


class RunScopedHttpServer(vLLMHttpServer):
    """vLLM's server, whose workers receive them by our extension."""

    def _get_worker_extension_cls(self) -> str:
        if use_cpu_device():
            return "verl_agent.platform.worker_extension.CpuWorkerExtension"
        return "verl_agent.platform.run_scoped_worker.RunScopedWorkerExtension"


class RunScopedReplica(vLLMReplica):
    """A replica that starts `RunScopedHttpServer`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.server_class = ray.remote(RunScopedHttpServer)
