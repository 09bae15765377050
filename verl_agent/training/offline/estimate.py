"""Estimate of the time of supervised training or DPO, from the lengths of its rows and the speed of this machine."""

from collections.abc import Iterable, Sequence
from typing import Any

from verl_agent.config.plan import OfflinePlan
from verl_agent.config.plan_parts import Passes
from verl_agent.training.preflight.estimates import Shape


def row_lengths(dataset: Any) -> list[int]:
    """Return the tokens of each row of a dataset, of a pair those of both rows; empty for None."""
    entries: Iterable[Any] = () if dataset is None else (dataset[at] for at in range(len(dataset)))
    rows = (row for entry in entries for row in (entry if isinstance(entry, tuple) else (entry,)))
    return [len(row["input_ids"]) for row in rows]


def computed_tokens(lengths: Sequence[int], passes: Passes) -> list[tuple[int, int]]:
    """Return the tokens of each row with its padding, and the length of the rows that it is computed beside.

    A micro batch of a fixed number of rows is padded to its longest row. Rows are shuffled, so that each row is
    padded as in the order of the data.
    """
    if passes.packed:
        return [(length, length) for length in lengths]
    each, padded = int(passes.rows or 1), []
    for start in range(0, len(lengths), each):
        part = lengths[start : start + each]
        padded += [(max(part), max(part))] * len(part)
    return padded


def computing_s(
    plan: OfflinePlan, shape: Shape, lengths: tuple[Sequence[int], Sequence[int]], steps: int, rate: float
) -> tuple[float, float]:
    """Return the seconds of the training of all steps, and of all validations, without start and checkpoints.

    Args:
        lengths: tokens of the rows to train on, and of those to validate on; see `row_lengths`.
        steps: number of optimizer steps.
        rate: operations per second of all processes together.
    """
    batch, every = int(plan.batch.tasks), plan.schedule.test_every
    forward, validation = (_forward(computed_tokens(rows, plan.actor.passes), shape) for rows in lengths)
    rows = len(lengths[0]) // (2 if plan.has_pairs else 1)
    epochs = steps * batch / rows
    passes = 4 if plan.actor.model["enable_gradient_checkpointing"] else 3  # a backward pass is two forward passes
    reference = forward + validation if plan.has_pairs else 0.0  # it reads each pair once
    every = max(1, rows // batch) if every == "after_each_epoch" else int(every)
    validations = (steps // every if every > 0 else 0) + bool(every <= 0 or steps % every) if lengths[1] else 0
    return (passes * epochs * forward + reference) / rate, validations * validation / rate


def _forward(tokens: Sequence[tuple[int, int]], shape: Shape) -> float:
    """Return the operations of a forward pass: two for each weight, and the products of attention."""
    attention = 4 * shape.layers * shape.heads * shape.head_dim
    return float(sum(count * (2 * shape.parameters + attention * length) for count, length in tokens))
