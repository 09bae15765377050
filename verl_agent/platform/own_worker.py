"""verl's worker extension, which receives weights by the run's own socket; loaded inside the engine's process."""

from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension

from verl_agent.platform.handover import own_socket


class OwnWorkerExtension(vLLMColocateWorkerExtension):
    """The engine's side of `OwnServerAdapter`."""

    def _get_zmq_handle(self) -> str:
        return own_socket(super()._get_zmq_handle())
