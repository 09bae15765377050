"""Ranks of FSDP engines on gloo that train, save and load; `run_ranks` starts this module for each of several."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from torch import Tensor
from torch.distributed.tensor import DTensor

from tests import ROOT
from tests.support.engines import batch_of, new_engine, policy_loss
from tests.support.letters import LOST, SHORT, TRUNCATED, WON
from verl_agent.platform.cpu_engine import CpuLanguageEngine, CpuValueEngine
from verl_agent.platform.resharding import ReshardingLanguageEngine

ROWS = [WON, LOST, SHORT, TRUNCATED]
KINDS: dict[str, dict[str, Any]] = {
    "cpu": {"kind": CpuLanguageEngine},
    "critic": {"kind": CpuValueEngine, "model_type": "value_model"},
    "verl": {"kind": ReshardingLanguageEngine},
    "replicas": {"kind": ReshardingLanguageEngine, "fsdp_size": 1},
}
"""Arguments of `new_engine`; one rank of the first two has whole tensors, the others have DTensors."""


@dataclass(frozen=True)
class Job:
    """Work of the ranks of a process group: train and save, or load a checkpoint and go on.

    Attributes:
        kind: name in `KINDS`.
        model: folder of the model.
        checkpoint: checkpoint to load; None to train and save.
    """

    kind: str
    model: str
    checkpoint: str | None = None


def run_ranks(folder: Path, ranks: int, jobs: Mapping[str, Job]) -> dict[str, list[Any]]:
    """Run jobs one after another in the ranks of a process group, and return the results of each rank, see `work`.

    One rank is this process. Each rank has one thread, since Adam shows rounding where a gradient is almost 0.
    """
    folder.mkdir()
    if ranks == 1:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return {name: [work(folder, 0, name, job)] for name, job in jobs.items()}
        finally:
            torch.set_num_threads(threads)
    (folder / "jobs.json").write_text(
        json.dumps({"ranks": ranks, "jobs": {name: asdict(job) for name, job in jobs.items()}})
    )
    command = [sys.executable, "-m", "tests.support.fsdp_rank", str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "VERL_PLATFORM": "cpu"}
    processes = []
    for rank in range(ranks):
        with (folder / f"rank{rank}.log").open("w") as log:
            processes.append(
                subprocess.Popen([*command, str(rank)], env=environment, stdout=log, stderr=subprocess.STDOUT)
            )
    try:
        codes = [process.wait(timeout=600) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert codes == [0] * ranks, "\n".join((folder / f"rank{rank}.log").read_text()[-3000:] for rank in range(ranks))
    found = [torch.load(folder / f"rank{rank}.pt", weights_only=False) for rank in range(ranks)]
    return {name: [one[name] for one in found] for name in jobs}


def work(folder: Path, rank: int, name: str, job: Job) -> dict[str, Any]:
    """Load a checkpoint, or make an update and save one; then make the next update. Return the state after each."""
    arguments = dict(KINDS[job.kind])
    engine = new_engine(arguments.pop("kind"), Path(job.model), "float32", lr=1e-2, **arguments)
    if job.checkpoint is None:
        update(engine, job.kind)
        torch.manual_seed(100 + rank)
        engine.save_checkpoint(str(folder / name), global_step=1)
    else:
        engine.load_checkpoint(job.checkpoint)
    results = {"first": state_of(engine), "random": torch.rand(4)}
    update(engine, job.kind)
    return {**results, "second": state_of(engine)}


def update(engine: Any, kind: str) -> None:
    """Make an update; every rank has the same rows, so that sums have the same order with any number of ranks."""
    loss: Callable[..., Any] = squared_values if kind == "critic" else policy_loss()
    with engine.train_mode():
        engine.train_batch(batch_of(ROWS), loss)
    engine.lr_scheduler_step()


def squared_values(model_output: Any, data: Any, dp_group: Any = None) -> tuple[Tensor, dict[str, Any]]:
    """Loss of a critic."""
    return model_output["values"].values().square().mean(), {}


def state_of(engine: Any) -> dict[str, Any]:
    """Return whole copies of weights and moments, and the state of the scheduler."""
    moments = engine.optimizer.state_dict()["state"]
    return {
        "weights": {name: whole(value) for name, value in engine.module.state_dict().items()},
        "moments": {
            f"{index}.{name}": whole(value) for index, of_one in moments.items() for name, value in of_one.items()
        },
        "scheduler": engine.lr_scheduler.state_dict(),
    }


def whole(tensor: Tensor) -> Tensor:
    """Return a whole copy of a tensor that may be sharded."""
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


def main(folder: Path, rank: int) -> None:
    """Run one rank."""
    torch.set_num_threads(1)
    given = json.loads((folder / "jobs.json").read_text())
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder / 'store'}", rank=rank, world_size=given["ranks"]
    )
    results = {name: work(folder, rank, name, Job(**job)) for name, job in given["jobs"].items()}
    torch.save(results, folder / f"rank{rank}.pt")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
