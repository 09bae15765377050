"""Rows of supervised training or DPO, and the batches and steps in which they are trained on."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from verl_agent.config.plan import OfflinePlan
from verl_agent.config.plan_parts import Batch
from verl_agent.errors import ConfigError
from verl_agent.training.offline.selection import NamedTask
from verl_agent.training.preflight.update_conditions import optimizer_conditions


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows to train on, the result of a method's checks before the start.

    Attributes:
        count: number of rows to train on: episodes, parts of episodes, or pairs.
        val_count: number of rows to validate on.
        datasets: encodes both as datasets of torch; the second may be None.
        facts: facts that identify the run beside its config (for example, a hash of its episodes).
        summary: one line about the data.
        recorded: tasks of the recorded episodes to train on.
    """

    count: int
    val_count: int
    datasets: Callable[[Any], tuple[Any, Any]]
    facts: Mapping[str, Any]
    summary: str
    recorded: frozenset[NamedTask]


def check_files(batch: Batch, train: str, validation: str) -> None:
    """Check the names of the data, which verl's own trainer would read as files.

    Raises:
        ConfigError: another name is given.
    """
    given = ("train_files", batch.train_files, [train]), ("val_files", batch.val_files, [None, validation])
    for key, name, allowed in given:
        if name not in allowed:
            names = ", ".join("null" if one is None else repr(one) for one in allowed)
            raise ConfigError(f"data.{key}={name!r} is not allowed. Allowed: {names}.")


def check_batches(plan: OfflinePlan, rows: Rows) -> None:
    """Check the optimizer, that the rows fill a batch, that batches divide evenly, and that a validation has data."""
    for condition in optimizer_conditions("optim"):
        if message := condition.message(plan.value):
            raise ConfigError(message)
    batch, passes, rate = int(plan.batch.tasks), plan.actor.passes, plan.value("optim.lr")
    if not rate > 0:
        raise ConfigError(f"optim.lr={rate!r} is not allowed. Allowed: a number above 0.")
    if rows.count < batch:
        raise ConfigError(f"{rows.summary}. Fewer than data.train_batch_size={batch}: lower it, or add episodes.")
    ranks = int(os.environ.get("WORLD_SIZE", "1")) // prod(plan.actor.ways.values())
    if batch % (ranks if passes.packed else ranks * int(passes.rows or 1)):
        micro = "" if passes.packed else f"{passes.key}={passes.rows}"
        several = f"the {ranks} processes of torchrun" if ranks > 1 else ""
        raise ConfigError(
            f"data.train_batch_size={batch} must be a multiple of {' times '.join(filter(None, (micro, several)))}."
        )
    if plan.batch.val_files and rows.val_count < batch:
        raise ConfigError(
            f"the validation data has {rows.val_count} rows, but verl drops batches smaller than data.train_batch_size="
            f"{batch}. Hold out more episodes, lower data.train_batch_size, or set data.val_files=null."
        )
    every = plan.schedule.test_every
    if isinstance(every, int) and every > 0 and not plan.batch.val_files:
        raise ConfigError(
            f"trainer.test_freq={every} asks for validations, but data.val_files is null. Set "
            "data.val_files, or set trainer.test_freq=-1."
        )


def total_steps(plan: OfflinePlan, rows: int) -> int:
    """Return the number of optimizer steps of the whole run.

    Raises:
        ConfigError: `trainer.total_training_steps` exceeds the steps of all epochs.
    """
    epochs, asked = plan.schedule.epochs, plan.schedule.steps
    most = rows // int(plan.batch.tasks) * int(epochs)
    if most < 1:
        raise ConfigError(f"trainer.total_epochs={epochs} leaves nothing to train. Allowed: >= 1.")
    if asked is not None and not 1 <= int(asked) <= most:
        raise ConfigError(
            f"trainer.total_training_steps={asked} must be from 1 to {most}, the steps of "
            f"trainer.total_epochs={epochs} over {rows} rows. Raise trainer.total_epochs."
        )
    return most if asked is None else int(asked)
