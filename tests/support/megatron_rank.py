"""One rank of verl's Megatron engine on the CPU: `python -m tests.support.megatron_rank FOLDER`.

`megatron_ranks` starts it. It reads `jobs.json` of the folder and writes their results to `rank<n>.pt`.
"""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from omegaconf import open_dict
from torch import Tensor
from verl.utils import tensordict_utils as tu
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.distributed import initialize_global_process_group_ray
from verl.workers.config import HFModelConfig
from verl.workers.engine import EngineRegistry

from tests.support.composing import recipe
from tests.support.engines import batch_of, policy_loss
from tests.support.letters import LOST, SHORT, TRUNCATED, WON

ROWS = [WON, LOST, SHORT, TRUNCATED, SHORT, WON, LOST, TRUNCATED]
"""Rows of 26 to 48 tokens."""
UNEVEN = [SHORT, TRUNCATED, SHORT, SHORT, WON, LOST, WON, LOST]
"""Rows of which the second half, one rank of two, has almost twice the tokens of the first."""


def new_engine(config: Any, critic: bool = False) -> Any:
    """Return an engine with a model that is loaded, from the sections of a config as verl's worker reads them."""
    section, model_section = (
        (config.critic, config.critic.model)
        if critic
        else (config.actor_rollout_ref.actor, config.actor_rollout_ref.model)
    )
    with open_dict(config):
        section.optim.total_training_steps = 10
    settings = omega_conf_to_dataclass(section)
    model: HFModelConfig = omega_conf_to_dataclass(model_section)
    settings.engine.use_remove_padding = model_section.use_remove_padding
    model_type = "value_model" if critic else "language_model"
    model.model_type = model_type
    engine = EngineRegistry.new(
        model_type=model_type,
        backend="megatron",
        model_config=model,
        engine_config=settings.engine,
        optimizer_config=settings.optim,
        checkpoint_config=settings.checkpoint,
    )
    engine.initialize()
    return engine


def own_rows(engine: Any, rows: Sequence[Any], **options: Any) -> Any:
    """Return the rows of this data-parallel rank as a batch."""
    ranks, rank = engine.get_data_parallel_size(), engine.get_data_parallel_rank()
    whole = batch_of(rows, micro_batch=2, use_remove_padding=True, **options)
    share = len(rows) // ranks
    return tu.index_select_tensor_dict(whole, torch.arange(rank * share, (rank + 1) * share))


def log_probs(engine: Any, rows: Sequence[Any]) -> dict[int, Tensor]:
    """Return the log-probs of each row by its index; on the ranks that verl collects outputs from."""
    with engine.eval_mode():
        output = engine.infer_batch(own_rows(engine, rows, compute_loss=False))
    if not engine.is_mp_src_rank_with_outputs():
        return {}
    values = output["model_output"]["log_probs"].unbind()
    first = engine.get_data_parallel_rank() * len(values)
    return {first + index: value for index, value in enumerate(values)}


def exported(engine: Any) -> dict[str, Tensor]:
    """Return the weights by their names in Hugging Face's format."""
    return {name: value.detach().float().clone() for name, value in engine.get_per_tensor_param()[0]}


def gradients(engine: Any, rows: Sequence[Any]) -> dict[str, Tensor]:
    """Return the gradient of each weight by its name in Hugging Face's format, summed over data-parallel ranks."""
    with engine.train_mode():  # at its end verl removes the gradients
        engine.optimizer_zero_grad()
        engine.forward_backward_batch(own_rows(engine, rows), policy_loss())
        sum_over_ranks(engine)
        parameters = [parameter for chunk in engine.module for parameter in chunk.parameters()]
        weights = [parameter.data.clone() for parameter in parameters]
        for parameter in parameters:
            parameter.data.copy_(parameter.main_grad)
        found = exported(engine)
        for parameter, weight in zip(parameters, weights, strict=True):
            parameter.data.copy_(weight)
    return found


def sum_over_ranks(engine: Any) -> None:
    """Give each data-parallel rank the parts of the gradients that the others have summed."""
    group, rank = engine.get_data_parallel_group(), engine.get_data_parallel_rank()
    for chunk in engine.module:
        for buffer in chunk.buffers:
            for bucket in buffer.buckets:
                parts = list(bucket.grad_data.chunk(engine.get_data_parallel_size()))
                torch.distributed.all_gather(parts, parts[rank].clone(), group=group)


def update(engine: Any) -> None:
    """Make an update."""
    with engine.train_mode():
        engine.train_batch(own_rows(engine, ROWS), policy_loss())
    engine.lr_scheduler_step()


def work(job: dict[str, Any]) -> dict[str, Any]:
    """Do what a job asks for, with an engine of its own, and return its results."""
    from megatron.core import parallel_state  # after verl, whose plugin prepares Megatron for a CPU

    parallel_state.destroy_model_parallel()  # that of the job before
    engine = new_engine(recipe(Path(job["recipe"]), "model_engine=megatron"))
    results: dict[str, Any] = {"class": type(engine).__name__, "optimizer": type(engine.optimizer).__name__}
    if "load" in job:
        engine.load_checkpoint(job["load"], del_local_after_load=False)
    results["log_probs"] = log_probs(engine, ROWS)
    if job.get("gradients"):
        results["gradients"] = gradients(engine, ROWS)
        results["uneven_gradients"] = gradients(engine, UNEVEN)
    for step in range(job.get("updates", 0)):
        update(engine)
        if step == 0 and "save" in job:
            engine.save_checkpoint(job["save"], global_step=1)
            results["checkpoint"] = job["save"]
    results["weights"] = exported(engine)
    results["log_probs_after"] = log_probs(engine, ROWS)
    return results


def main(folder: Path) -> None:
    """Run one rank."""
    torch.set_num_threads(1)
    initialize_global_process_group_ray()
    results = [work(job) for job in json.loads((folder / "jobs.json").read_text())]
    torch.save(results, folder / f"rank{os.environ['RANK']}.pt")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
