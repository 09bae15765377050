"""Schedule of turn limits that falls back to the first stage from time to time."""

from collections.abc import Sequence

import verl_agent as va


class Waves(va.Schedule):
    """All stages within `period` steps, then from the first one again.

    Args:
        stages: turn limits of `horizon.max_turns`, growing.
        period: steps of a wave.
    """

    def __init__(self, stages: Sequence[int], *, period: int = 10) -> None:
        super().__init__(stages)
        self._period = period

    def limit(self, step: int, item: va.TaskItem) -> int:
        return self.stages[(step - 1) % self._period * len(self.stages) // self._period]
