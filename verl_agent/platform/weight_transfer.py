"""Name of the socket for the weight transfer from trainer to engine, unique for every run.

verl copies the weights. The trainer's end is in `vllm_rollout.py`, the engine's end in `worker_extension.py`.

verl 0.9.1 names the socket after the Ray job (workers/rollout/vllm_rollout/vllm_rollout.py:140 and
vllm_async_server.py:143). The id of that job is the same in every Ray that a run starts for itself. Two runs on one
machine would receive each other's weights, or wait forever. The name of the run makes the socket unique.
"""

import os

RUN_NAME = "VERL_AGENT_RUN"
"""Environment variable of all processes of a run, with a unique name of the run."""
SOCKET_PREFIX = "/rl-colocate-zmq-"
"""Part of the address in front of verl's job id."""


def run_scoped_socket(address: str) -> str:
    """Return verl's socket address with the name of this run; unchanged if `RUN_NAME` is not set."""
    run = os.environ.get(RUN_NAME)
    return address.replace(SOCKET_PREFIX, f"{SOCKET_PREFIX}{run}-", 1) if run else address
