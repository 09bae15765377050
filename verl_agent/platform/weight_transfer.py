"""The name of the socket over which trainer and engine hand weights over, made this run's own.

verl 0.9.1 builds it from the id of the Ray job (workers/rollout/vllm_rollout/vllm_rollout.py:140 and
vllm_async_server.py:143). That id is the same in every Ray that a run starts for itself, so two runs on one machine
would take each other's weights, or wait for ever. Here it holds the run's own name besides.
"""

import os
from typing import Any

RUN_NAME = "VERL_AGENT_RUN"
"""Environment variable of all processes of a run: a name that no other run has."""
SHARED = "/rl-colocate-zmq-"


def run_scoped_socket(handle: str) -> str:
    """The address for this run; verl's own where no run is named."""
    run = os.environ.get(RUN_NAME)
    return handle.replace(SHARED, f"{SHARED}{run}-", 1) if run else handle


def register_weight_transfer() -> None:
    """Have verl's vLLM rollout hand weights over by the run's own socket, in this process."""
    from verl.workers.rollout import base
    from verl.workers.rollout.replica import RolloutReplicaRegistry

    base._ROLLOUT_REGISTRY[("vllm", "async")] = "verl_agent.platform.rollout.RunScopedServerAdapter"
    RolloutReplicaRegistry.register("vllm", _load_replica)


def _load_replica() -> Any:
    from verl_agent.platform.rollout import RunScopedReplica

    return RunScopedReplica
