"""Environment variables of every process of a run."""

import os
from collections.abc import Mapping
from pathlib import Path
from uuid import uuid4

from verl_agent.platform.detect import use_cpu_device
from verl_agent.platform.stacks import STACKS_FILE, stacks_file
from verl_agent.platform.weight_transfer import RUN_NAME


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
        variables |= {
            "VERL_PLATFORM": "cpu",
            "OMP_NUM_THREADS": cores,  # Ray would set 1
            "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",  # trainer and engine take turns
            "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
            "RAY_num_workers_soft_limit": "0",  # end idle workers; Ray would keep one for each logical CPU
            "TQ_LOGGING_LEVEL": "ERROR",  # TransferQueue would warn at each transfer that a machine has few cores
            "MALLOC_ARENA_MAX": "2",  # glibc would keep freed memory in up to 8 arenas for each core
        }
    return variables
