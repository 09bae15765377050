"""Studies: the arms that are compared. A new arm is one entry; a new method is one small function here.

A function for `Arm.credit` changes `batch.rewards_BT` and `batch.mask_BT`, for example those of the rows whose episode
has `stop == StopReason.TURN_LIMIT`. A function for `Arm.order` returns the order of the rows.
"""

import random
from collections.abc import Mapping

from tests.bench.learning.direct.game import Batch
from tests.bench.learning.direct.learner import Arm


def by_completion(batch: Batch, seed: int, step: int) -> list[int]:
    """Order the rows by the time at which their episodes ended, as verl does."""
    return sorted(range(len(batch.keys)), key=batch.seconds_B.__getitem__)


def by_chance(batch: Batch, seed: int, step: int) -> list[int]:
    """Shuffle the rows, as verl does with `actor.shuffle=true`."""
    return random.Random(f"{seed}:{step}").sample(range(len(batch.keys)), len(batch.keys))


STUDIES: Mapping[str, Mapping[str, Arm]] = {
    "order": {"groups": Arm(), "completion": Arm(order=by_completion), "rows": Arm(order=by_chance)},
}
"""Arms of each study by name; the first one is the reference of paired differences."""
