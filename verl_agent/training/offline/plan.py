"""Plan of supervised training or DPO: its rows, and the batches and steps in which they are trained on."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from verl_agent.config.settings import AgentEnv
from verl_agent.errors import ConfigError


@dataclass(frozen=True, slots=True)
class RunPlan:
    """Result of a method's checks before the start.

    Attributes:
        rows: number of rows to train on: episodes, parts of episodes, or pairs.
        val_rows: number of rows to validate on.
        datasets: encodes both as datasets of torch; the second may be None.
        facts: facts that identify the run beside its config (for example, a hash of its episodes).
        summary: one line about the data.
    """

    rows: int
    val_rows: int
    played: AgentEnv
    datasets: Callable[[Any], tuple[Any, Any]]
    facts: Mapping[str, Any]
    summary: str


def check_files(data: Mapping[str, Any], train: str, validation: str) -> None:
    """Check the names of the data, which verl's own trainer would read as files.

    Raises:
        ConfigError: another name is given.
    """
    for key, allowed in (("train_files", [train]), ("val_files", [None, validation])):
        if data[key] not in allowed:
            names = ", ".join("null" if one is None else repr(one) for one in allowed)
            raise ConfigError(f"data.{key}={data[key]!r} is not allowed. Allowed: {names}.")


def check_batches(config: Mapping[str, Any], plan: RunPlan) -> None:
    """Check that the rows fill a batch, that batches divide evenly, and that a validation has data."""
    data, batch, rate = config["data"], int(config["data"]["train_batch_size"]), config["optim"]["lr"]
    if not isinstance(rate, int | float) or not rate > 0:
        raise ConfigError(f"optim.lr={rate!r} is not allowed. Allowed: a number above 0.")
    if plan.rows < batch:
        raise ConfigError(f"{plan.summary}. Fewer than data.train_batch_size={batch}: lower it, or add episodes.")
    ranks = int(os.environ.get("WORLD_SIZE", "1")) // int(config["engine"]["ulysses_sequence_parallel_size"])
    packed, each = data["use_dynamic_bsz"], data["micro_batch_size_per_gpu"]
    if batch % (ranks if packed else ranks * int(each)):
        micro = "" if packed else f"data.micro_batch_size_per_gpu={each}"
        several = f"the {ranks} processes of torchrun" if ranks > 1 else ""
        raise ConfigError(
            f"data.train_batch_size={batch} must be a multiple of {' times '.join(filter(None, (micro, several)))}."
        )
    if data["val_files"] and plan.val_rows < batch:
        raise ConfigError(
            f"the validation data has {plan.val_rows} rows, but verl drops batches smaller than data.train_batch_size="
            f"{batch}. Hold out more episodes, lower data.train_batch_size, or set data.val_files=null."
        )
    every = config["trainer"]["test_freq"]
    if isinstance(every, int) and every > 0 and not data["val_files"]:
        raise ConfigError(
            f"trainer.test_freq={every} asks for validations, but data.val_files is null. Set "
            "data.val_files, or set trainer.test_freq=-1."
        )


def total_steps(config: Mapping[str, Any], rows: int) -> int:
    """Return the number of optimizer steps of the whole run.

    Raises:
        ConfigError: `trainer.total_training_steps` exceeds the steps of all epochs.
    """
    epochs, asked = config["trainer"]["total_epochs"], config["trainer"]["total_training_steps"]
    most = rows // int(config["data"]["train_batch_size"]) * int(epochs)
    if most < 1:
        raise ConfigError(f"trainer.total_epochs={epochs} leaves nothing to train. Allowed: >= 1.")
    if asked is not None and not 1 <= int(asked) <= most:
        raise ConfigError(
            f"trainer.total_training_steps={asked} must be from 1 to {most}, the steps of "
            f"trainer.total_epochs={epochs} over {rows} rows. Raise trainer.total_epochs."
        )
    return most if asked is None else int(asked)
