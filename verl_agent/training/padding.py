"""Order of a batch in which padding rows are spread evenly."""

from collections.abc import Sequence


def spread_padding(padding: Sequence[bool], ranks: int) -> list[int]:
    """Return an order of the rows that spreads the padding rows evenly over the rows of each rank.

    verl pads a batch to whole mini batches and sorts it (`PPOTrainer._balance_batch`), so all padding is in the last
    mini batch of each rank. With a mean over tokens, the few episodes beside it would make an optimizer step of their
    own, with the weight of a whole mini batch.

    Args:
        padding: True for each padding row.
        ranks: number of ranks; each takes an equal, contiguous share of the rows and splits it into mini batches.

    Returns:
        Old index of each row. Rows stay with their rank. Padding rows and episodes each keep their order.
    """
    size = len(padding) // ranks
    order: list[int] = []
    for begin in range(0, len(padding), size):
        rows = range(begin, begin + size)
        padded, real = [row for row in rows if padding[row]], [row for row in rows if not padding[row]]
        for index in range(size):
            placed, due = index * len(padded) // size, (index + 1) * len(padded) // size
            order.append(padded[placed] if due > placed else real[index - placed])
    return order
