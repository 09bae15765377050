"""Environment variables of every process of a run."""

import os
from collections.abc import Mapping
from pathlib import Path
from uuid import uuid4

from verl_agent.platform.detect import use_cpu_device
from verl_agent.platform.stacks import STACKS_FILE, stacks_file
from verl_agent.platform.weight_transfer import RUN_NAME

NICENESS = "RAY_worker_niceness"
"""Variable of Ray with the niceness of its workers, 0 to 19."""
SPIN_ROUNDS = 1000
"""Rounds for which an OpenMP thread of libgomp polls for work before it sleeps; libgomp's default is 300,000.

On a machine with other work, a long spin takes the core that the other threads need (`make bench-threads`).
"""


def thread_waiting() -> Mapping[str, str]:
    """Return the variable by which threads of matrix products wait shortly; empty if the user chose a policy.

    libgomp reads it when it is loaded, so it must be set before the first import of torch.
    """
    chosen = "GOMP_SPINCOUNT" in os.environ or "OMP_WAIT_POLICY" in os.environ
    return {} if chosen else {"GOMP_SPINCOUNT": str(SPIN_ROUNDS)}


def worker_environment(run_dir: Path, ranks: int = 1) -> Mapping[str, str]:
    """Return the environment variables of every process of a run with this number of ranks on each machine."""
    variables = {
        "TENSORBOARD_DIR": str(run_dir / "tensorboard"),
        STACKS_FILE: str(stacks_file(run_dir)),
        RUN_NAME: uuid4().hex[:12],
        "HYDRA_FULL_ERROR": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONWARNINGS": "ignore",
    }
    if use_cpu_device():
        cores = str(max(1, len(os.sched_getaffinity(0)) // ranks))
        variables |= thread_waiting()
        variables |= {
            "VERL_PLATFORM": "cpu",
            "OMP_NUM_THREADS": cores,  # Ray would set 1
            NICENESS: os.environ.get(NICENESS, "0"),  # Ray's 15 starves beside other work
            "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",  # trainer and engine take turns
            "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
            "RAY_num_workers_soft_limit": "0",  # end idle workers; Ray would keep one for each logical CPU
            "TQ_LOGGING_LEVEL": "ERROR",  # TransferQueue would warn at each transfer that a machine has few cores
            "MALLOC_ARENA_MAX": "2",  # glibc would keep freed memory in up to 8 arenas for each core
        }
    return variables
