"""Start of the ranks of verl's Megatron engine on the CPU, and their results."""

import json
import os
import socket
import subprocess
import sys
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


def run_ranks(folder: Path, layout: str, model: Path, **job: Any) -> list[dict[str, Any]]:
    """Run the ranks of a layout to their end and return the results of each, see `tests.support.megatron_rank`."""
    folder.mkdir(parents=True)
    ranks, settings = LAYOUTS[layout]
    (folder / "recipe.yaml").write_text(RECIPE.format(model=model, layout=settings))
    (folder / "job.json").write_text(json.dumps({"recipe": str(folder / "recipe.yaml"), **job}))
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
    return [torch.load(folder / f"rank{rank}.pt", weights_only=False) for rank in range(ranks)]
