"""Where the rows lie that only fill a batch up."""

from collections.abc import Sequence


def spread_padding(padding: Sequence[bool], ranks: int) -> list[int]:
    """An order of the rows in which those that fill up lie evenly among the others, in the part of each rank.

    verl fills a batch up to whole mini batches, and sorts (`PPOTrainer._balance_batch`), so that all that fills up
    lies in the last mini batch of each rank. With a mean over tokens, the few episodes beside it would make an
    optimizer step of their own, and count as much as a whole mini batch of the others.

    Args:
        padding: of each row, whether it only fills up.
        ranks: parts of equal length that are handed out, each cut into mini batches from its beginning.

    Returns:
        The old place of each row; rows stay in their part, and both kinds in their order.
    """
    size = len(padding) // ranks
    order: list[int] = []
    for begin in range(0, len(padding), size):
        part = range(begin, begin + size)
        filling, real = [row for row in part if padding[row]], [row for row in part if not padding[row]]
        for place in range(size):
            share = (place + 1) * len(filling) // size  # of what fills up, that has its place up to here
            due = share > place * len(filling) // size
            order.append(filling[share - 1] if due else real[place - share])
    return order
