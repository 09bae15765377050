"""Order of a batch that puts whole groups into each mini-batch and depends on seed and step, not on the clock.

verl trains on rows in the order in which their episodes ended. Each rank takes an equal, contiguous share of the batch
and splits it into mini-batches (verl/workers/engine_workers.py, `train_mini_batch`). Without another order, the first
mini-batch of a step has the shortest episodes, which are often the best, and the last one has the longest.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from verl_agent.training.groups import group_of, row_order


@dataclass(frozen=True, slots=True)
class BatchRow:
    """One row of a batch.

    Attributes:
        key: verl's key, `<group>_<sample>_<segment>`.
        workload: cost of the row's forward and backward pass, in any unit.
        padding: True for a row without loss: one that verl adds, or one of a dropped episode.
    """

    key: str
    workload: int
    padding: bool = False


def order_batch(rows: Sequence[BatchRow], mini_batch: int, ranks: int, seed: int, step: int) -> list[int]:
    """Return the order in which mini-batch k of all ranks together has whole groups, for every k.

    A function of the rows, the seed and the step; the order in which the rows are given has no effect. The groups are
    shuffled by seed and step, so that other tasks share a mini-batch in the next step.

    Args:
        rows: rows of the batch; their number is a multiple of `mini_batch`.
        mini_batch: rows of a mini-batch of all ranks together, a multiple of `ranks`.

    Returns:
        Index in `rows` of each row of the ordered batch.

    Raises:
        ValueError: the rows are no whole mini-batches.
    """
    if not rows or len(rows) % mini_batch:
        raise ValueError(f"{len(rows)} rows do not fill mini-batches of {mini_batch} rows.")
    random = Random(f"{seed}:{step}")
    shares: list[list[int]] = [[] for _ in range(ranks)]
    loads = [0] * ranks
    for batch in _mini_batches(rows, mini_batch, random):
        heaviest_first = sorted(_parts(batch, rows, ranks), key=lambda part: -part[0])
        lightest_first = sorted(range(ranks), key=loads.__getitem__)
        for rank, (workload, part) in zip(lightest_first, heaviest_first, strict=True):
            shares[rank] += part
            loads[rank] += workload
    return [row for share in shares for row in share]


def _mini_batches(rows: Sequence[BatchRow], size: int, random: Random) -> list[list[int]]:
    """Return the rows of each mini-batch: whole groups, and about equally many padding rows.

    The largest remaining group goes to the mini-batch with the fewest rows. A group that fits into none is split.
    """
    in_order = sorted(range(len(rows)), key=lambda row: row_order(rows[row].key))
    groups: dict[str, list[int]] = defaultdict(list)
    for row in in_order:
        if not rows[row].padding:
            groups[group_of(rows[row].key)].append(row)
    shuffled = list(groups.values())
    random.shuffle(shuffled)
    batches: list[list[int]] = [[] for _ in range(len(rows) // size)]
    for group in sorted(shuffled, key=len, reverse=True):
        rest = group
        while rest:
            emptiest = min(batches, key=len)
            room = size - len(emptiest)
            emptiest += rest[:room]
            rest = rest[room:]
    padding = iter(row for row in in_order if rows[row].padding)
    for batch in batches:
        batch += [next(padding) for _ in range(size - len(batch))]
    random.shuffle(batches)
    return batches


def _parts(batch: list[int], rows: Sequence[BatchRow], ranks: int) -> list[tuple[int, list[int]]]:
    """Return workload and rows of equally long parts of a mini-batch, with about the same workload.

    The heaviest remaining row goes to the lightest part that is not full. Rows keep their order within a part.
    """
    parts: list[list[int]] = [[] for _ in range(ranks)]
    loads = [0] * ranks
    for row in sorted(batch, key=lambda row: -rows[row].workload):
        lightest = min((part for part in range(ranks) if len(parts[part]) < len(batch) // ranks), key=loads.__getitem__)
        parts[lightest].append(row)
        loads[lightest] += rows[row].workload
    place = {row: index for index, row in enumerate(batch)}
    return [(load, sorted(part, key=place.__getitem__)) for load, part in zip(loads, parts, strict=True)]
