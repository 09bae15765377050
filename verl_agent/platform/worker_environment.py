"""Environment variables of every process of a run."""

import os
from collections.abc import Mapping
from pathlib import Path
from uuid import uuid4

from verl_agent.platform.detect import use_cpu_device
from verl_agent.platform.stacks import STACKS_FILE, stacks_file
from verl_agent.platform.weight_transfer import RUN_NAME

WAITING = ROUNDS, POLICY = "GOMP_SPINCOUNT", "OMP_WAIT_POLICY"
"""Variables of OpenMP that decide how a thread waits for work; libgomp prefers the first."""
POLICY_ROUNDS = {"passive": "0", "active": "30000000000"}
"""Rounds that libgomp takes for a policy (`initialize_env` in libgomp/env.c)."""
SPIN_ROUNDS = 1000
"""Rounds for which an OpenMP thread of libgomp polls for work before it sleeps; libgomp's default is 300,000.

On a machine with other work, a long spin takes the core that the other threads need (`make bench-threads`).
"""
THREADS, OWN_THREADS = "OMP_NUM_THREADS", "VERL_AGENT_OMP_NUM_THREADS"
"""Variable with a process's number of threads, and with the number that this package chose; another is the user's."""
CPU_DEFAULTS = {
    "RAY_worker_niceness": "0",  # Ray's 15 starves beside other work
    "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",  # trainer and engine take turns
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_num_workers_soft_limit": "0",  # end idle workers; Ray would keep one for each logical CPU
    "TQ_LOGGING_LEVEL": "ERROR",  # TransferQueue would warn at each transfer that a machine has few cores
    "MALLOC_ARENA_MAX": "2",  # glibc would keep freed memory in up to 8 arenas for each core
}
"""Variables on a CPU, unless the user has set them."""


def thread_waiting(recipe: Mapping[str, object] | None = None) -> Mapping[str, str]:
    """Return the variables by which threads of matrix products wait: on a GPU none, else by default a short wait.

    libgomp reads them when it is loaded, so they must be set before the first import of torch. Those that recipe or
    user chose are returned too, since the workers of a Ray that runs already do not inherit them. A policy comes with
    its rounds, which replace a number that a process inherits. An empty number would do so with a warning of libgomp.

    Args:
        recipe: variables that a recipe gives to the workers of Ray; one of `WAITING` among them decides.
    """
    if not use_cpu_device():
        return {}
    for source in (recipe or {}, os.environ):
        if chosen := {name: str(value) for name in WAITING if (value := source.get(name)) is not None}:
            rounds = POLICY_ROUNDS.get(chosen.get(POLICY, "").strip().lower())
            return ({ROUNDS: rounds} if rounds else {}) | chosen
    return {ROUNDS: str(SPIN_ROUNDS)}


def set_thread_waiting(recipe: Mapping[str, object] | None) -> None:
    """Set the variables of `thread_waiting` in this process, and remove another one of `WAITING`."""
    if chosen := thread_waiting(recipe):
        for name in WAITING:
            os.environ.pop(name, None)
        os.environ.update(chosen)


def worker_environment(run_dir: Path, ranks: int = 1, recipe: Mapping[str, object] | None = None) -> Mapping[str, str]:
    """Return the environment variables of every process of a run; on a CPU those of the user's shell win.

    Args:
        ranks: number of ranks on each machine, which share its cores.
        recipe: see `thread_waiting`.
    """
    variables = {
        "TENSORBOARD_DIR": str(run_dir / "tensorboard"),
        STACKS_FILE: str(stacks_file(run_dir)),
        RUN_NAME: uuid4().hex[:12],
        "HYDRA_FULL_ERROR": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONWARNINGS": "ignore",
    }
    if use_cpu_device():
        variables |= {"VERL_PLATFORM": "cpu", **thread_waiting(recipe), **_threads(ranks)}
        variables |= {name: os.environ.get(name, value) for name, value in CPU_DEFAULTS.items()}
    return variables


def _threads(ranks: int) -> Mapping[str, str]:
    """Return the number of threads of a process: that of the user's shell, else an equal share of the cores."""
    chosen = os.environ.get(THREADS)
    by_torchrun = chosen == "1" and "TORCHELASTIC_RUN_ID" in os.environ  # its default for several ranks
    if chosen and not by_torchrun and chosen != os.environ.get(OWN_THREADS):
        return {THREADS: chosen}
    share = str(max(1, len(os.sched_getaffinity(0)) // ranks))
    return {THREADS: share, OWN_THREADS: share}  # without the variable, Ray would set 1
