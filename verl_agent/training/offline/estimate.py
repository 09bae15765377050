"""Estimate of the time of supervised training or DPO, from the lengths of its rows and the speed of this machine."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from verl_agent.config.plan import OfflinePlan
from verl_agent.config.plan_parts import Passes
from verl_agent.training.preflight.estimates import Shape


@dataclass(frozen=True, slots=True)
class RowLengths:
    """Lengths of the rows of a dataset.

    Attributes:
        tokens: tokens of each row, of a pair those of both rows.
        computed: tokens that a pass over all rows computes, in parts, each with the mean length of its rows, which
            attention reads.
    """

    tokens: list[int] = field(default_factory=list)
    computed: list[tuple[int, int]] = field(default_factory=list)


def measure_rows(dataset: Any, plan: OfflinePlan, ranks: int = 1, shared: bool = False) -> RowLengths:
    """Measure the rows of a dataset; without rows for None.

    The batches are those of the order of the data. Training shuffles the rows, so its batches differ by chance only.

    Args:
        ranks: number of ranks that divide a batch.
        shared: a beginning that rows of a micro batch share is computed once; see `platform/cpu_engine.py`.
    """
    rows, each, passes = RowLengths(), max(1, int(plan.batch.tasks) // ranks), plan.actor.passes
    packed = passes.packed or bool(plan.actor.model["use_remove_padding"])
    count = 0 if dataset is None else len(dataset)
    for start in range(0, count, each):
        entries = [dataset[at] for at in range(start, min(start + each, count))]
        units = [[row["input_ids"] for row in (one if isinstance(one, tuple) else (one,))] for one in entries]
        rows.tokens.extend(len(row) for unit in units for row in unit)
        rows.computed.extend(
            shared_tokens(units, passes) if shared and not packed else padded_tokens(units, passes, packed)
        )
    return rows


def shared_tokens(units: Sequence[Sequence[Any]], passes: Passes) -> list[tuple[int, int]]:
    """Return the tokens of each micro batch of the engine on a CPU, and the mean length of its rows.

    Args:
        units: rows, or pairs of rows, each row int64 `(L,)`.
    """
    from verl_agent.platform.token_tree import TokenTree, pack

    longest = max(len(row) for unit in units for row in unit)
    groups = pack(units, int(passes.rows or 1) * len(units[0]) * longest)
    parts = [[row for index in group for row in units[index]] for group in groups]
    return [(len(TokenTree.of(part).ids_U), sum(map(len, part)) // len(part)) for part in parts]


def padded_tokens(units: Sequence[Sequence[Any]], passes: Passes, packed: bool) -> list[tuple[int, int]]:
    """Return the tokens of each row with its padding, and the length of the rows that it is computed beside.

    Args:
        units: see `shared_tokens`.
        packed: rows have no padding; else the rows of a micro batch are as long as its longest.
    """
    each, padded = 1 if packed else int(passes.rows or 1), []
    for start in range(0, len(units), each):
        lengths = [len(row) for unit in units[start : start + each] for row in unit]
        longest = max(lengths)
        padded += [(one, one) if packed else (longest, longest) for one in lengths]
    return padded


def computing_s(
    plan: OfflinePlan, shape: Shape, train: RowLengths, validation: RowLengths, steps: int, rate: float
) -> tuple[float, float]:
    """Return the seconds of the training of all steps, and of all validations, without start and checkpoints.

    Args:
        steps: number of optimizer steps.
        rate: operations per second of all ranks together.
    """
    batch, every = int(plan.batch.tasks), plan.schedule.test_every
    forward, validating = (_forward(each.computed, shape) for each in (train, validation))
    rows = len(train.tokens) // (2 if plan.has_pairs else 1)
    epochs = steps * batch / rows
    passes = 4 if plan.actor.model["enable_gradient_checkpointing"] else 3  # a backward pass is two forward passes
    reference = forward + validating if plan.has_pairs else 0.0  # it reads each pair once
    every = max(1, rows // batch) if every == "after_each_epoch" else int(every)
    validations = (steps // every if every > 0 else 0) + bool(every <= 0 or steps % every) if validation.tokens else 0
    return (passes * epochs * forward + reference) / rate, validations * validating / rate


def _forward(tokens: Sequence[tuple[int, int]], shape: Shape) -> float:
    """Return the operations of a forward pass: two for each weight, and the products of attention."""
    attention = 4 * shape.layers * shape.heads * shape.head_dim
    return float(sum(count * (2 * shape.parameters + attention * length) for count, length in tokens))
