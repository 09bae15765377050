"""verl's worker extension, which receives weights by the run's own socket; loaded inside the engine's process."""

from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension

from verl_agent.platform.weight_transfer import run_scoped_socket


class RunScopedWorkerExtension(vLLMColocateWorkerExtension):
    """The engine's side of `RunScopedServerAdapter`."""

    def _get_zmq_handle(self) -> str:
        return run_scoped_socket(super()._get_zmq_handle())
