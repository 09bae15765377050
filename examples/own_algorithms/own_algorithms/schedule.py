"""Schedule of turn limits that falls back to the first stage from time to time."""

from collections.abc import Sequence


def waves(step: int, stages: Sequence[int], *, period: int = 10) -> int:
    """Return the turn limit at a step: all stages within `period` steps, then from the first one again.

    Args:
        step: training step, from 1.
        stages: turn limits of `horizon.max_turns`, growing.
        period: steps of a wave.
    """
    return stages[(step - 1) % period * len(stages) // period]
