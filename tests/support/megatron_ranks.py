"""Start of the ranks of verl's Megatron engine on the CPU, and their results."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from tests import ROOT
from verl_agent.platform.megatron.activation import STAND_INS

RECIPE = """
defaults: [agent_grpo, cpu, _self_]
env: {{name: guess_number}}
horizon: {{max_turns: [2]}}
data: {{train_batch_size: 4, max_prompt_length: 256, max_response_length: 256}}
actor_rollout_ref:
  model: {{path: {model}}}
  actor:
    optim: {{lr: 1.0e-2}}
    megatron: {{dtype: float32, {layout}}}
trainer: {{total_training_steps: 10, experiment_name: ranks}}
"""
LAYOUTS = {
    "tp1": (1, "tensor_model_parallel_size: 1"),
    "tp2": (2, "tensor_model_parallel_size: 2"),
    "pp2": (2, "pipeline_model_parallel_size: 2"),
    "dp2": (2, "tensor_model_parallel_size: 1"),
}
"""Number of ranks and settings of Megatron for each layout."""


def run_ranks(folder: Path, model: Path, jobs: Mapping[str, Mapping[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Run jobs, each in its `layout`, and return the results of each rank by the job's name.

    The same processes do all jobs of one rank, and others all jobs of two, see `tests.support.megatron_rank`.
    """
    ranks_of = {name: LAYOUTS[job["layout"]][0] for name, job in jobs.items()}
    found = {}
    for ranks in sorted({*ranks_of.values()}):
        own = {name: job for name, job in jobs.items() if ranks_of[name] == ranks}
        found |= _run_group(folder / f"{ranks}_ranks", ranks, model, own)
    return found


def _run_group(
    folder: Path, ranks: int, model: Path, jobs: Mapping[str, Mapping[str, Any]]
) -> dict[str, list[dict[str, Any]]]:
    folder.mkdir(parents=True)
    orders = []
    for number, job in enumerate(jobs.values()):
        recipe = folder / f"recipe{number}.yaml"
        recipe.write_text(RECIPE.format(model=model, layout=LAYOUTS[job["layout"]][1]))
        orders.append({"recipe": str(recipe), **job})
    (folder / "jobs.json").write_text(json.dumps(orders))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "tests.support.megatron_rank", str(folder)]
    processes = []
    for rank in range(ranks):
        variables = {
            STAND_INS: "1", "VERL_PLATFORM": "cpu", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
            "RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(rank), "PYTHONPATH": str(ROOT),
        }  # fmt: skip
        log = (folder / f"rank{rank}.log").open("w")
        processes.append(
            subprocess.Popen(command, env={**os.environ, **variables}, stdout=log, stderr=subprocess.STDOUT)
        )
    try:
        codes = [process.wait(timeout=600) for process in processes]
    finally:
        for process in processes:
            process.kill()
    logs = "\n".join((folder / f"rank{rank}.log").read_text()[-4000:] for rank in range(ranks))
    assert codes == [0] * ranks, logs
    by_rank = [torch.load(folder / f"rank{rank}.pt", weights_only=False) for rank in range(ranks)]
    return {name: list(results) for name, results in zip(jobs, zip(*by_rank, strict=True), strict=True)}
