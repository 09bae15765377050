"""Studies: the arms that are compared. A new arm is one entry; a new method is one small function here.

A function for `Arm.credit` changes `batch.rewards_BT` and `batch.mask_BT`, for example those of the rows whose episode
has `stop == StopReason.TURN_LIMIT`. A function for `Arm.order` returns the order of the rows.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch import Tensor
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

from tests.bench.learning.direct.flight import Asynchrony
from tests.bench.learning.direct.game import Batch
from tests.bench.learning.direct.learner import Arm
from verl_agent.horizon import Horizon
from verl_agent.platform.cpu_engine import CpuLanguageEngine


def by_completion(batch: Batch, seed: int, step: int) -> list[int]:
    """Order the rows by the time at which their episodes ended, as verl does."""
    return sorted(range(len(batch.keys)), key=batch.seconds_B.__getitem__)


def by_chance(batch: Batch, seed: int, step: int) -> list[int]:
    """Shuffle the rows, as verl does with `actor.shuffle=true`."""
    return random.Random(f"{seed}:{step}").sample(range(len(batch.keys)), len(batch.keys))


DISCOUNT = 0.9
"""Discount per action. Without one, an episode that is continued by the critic is never worse than a solved one."""
GROWING = Horizon([2, 4, 6], steps_per_stage=30)


def without_truncated(batch: Batch, last_value_B: Tensor | None) -> None:
    """Leave truncated rows out of the loss and of the statistics of their group."""
    batch.mask_BT[[episode.truncated for episode in batch.episodes]] = 0


def bootstrap(batch: Batch, last_value_B: Tensor | None, discount: float = DISCOUNT) -> None:
    """Add the value of the last state to the return of truncated rows, as `credit.truncated=bootstrap` does."""
    assert last_value_B is not None  # the arm has a critic
    for row, (episode, last) in enumerate(zip(batch.episodes, batch.last_action_B.tolist(), strict=True)):
        if episode.truncated:
            batch.rewards_BT[row, last] += discount * last_value_B[row]


def bootstrap_undiscounted(batch: Batch, last_value_B: Tensor | None) -> None:
    """Bootstrap without a discount."""
    bootstrap(batch, last_value_B, 1.0)


GROUPS = {"as_is": Arm(), "drop": Arm(drops=True), "drop_from_group": Arm(credit=without_truncated)}
CRITIC = {
    "as_is": Arm(estimator="gae", gamma=DISCOUNT, lam=0.95),
    "drop": Arm(estimator="gae", gamma=DISCOUNT, lam=0.95, drops=True),
    "bootstrap": Arm(estimator="gae", gamma=DISCOUNT, lam=0.95, credit=bootstrap),
    "as_is_undiscounted": Arm(estimator="gae", lam=0.95),
    "bootstrap_undiscounted": Arm(estimator="gae", lam=0.95, credit=bootstrap_undiscounted),
}


def growing(arms: Mapping[str, Arm]) -> Mapping[str, Arm]:
    """Return the arms under a growing horizon."""
    return {name: replace(arm, horizon=GROWING) for name, arm in arms.items()}


def at_rates(arms: Mapping[str, Arm], rates: Sequence[float]) -> Mapping[str, Arm]:
    """Return each arm at each learning rate."""
    return {f"{name}_{rate:g}": replace(arm, learning_rate=rate) for rate in rates for name, arm in arms.items()}


STALENESS = {
    "synchronous": Arm(rollout=Asynchrony(threshold=1, warmup=0.0)),
    "staleness_2": Arm(rollout=Asynchrony()),
    "staleness_2_more_ahead": Arm(rollout=Asynchrony(warmup=1.0)),
    "staleness_2_uncorrected": Arm(rollout=Asynchrony(corrected=False)),
}
"""Synchronous rollout, that of `+overlay/rollout=partial`, with more episodes in flight, and without correction."""
ORDERS = {"groups": Arm(), "completion": Arm(order=by_completion), "rows": Arm(order=by_chance)}
ENGINES = {
    "verl": Arm(engine=(FSDPEngineWithLMHead, "bfloat16")),
    "cpu": Arm(engine=(CpuLanguageEngine, "bfloat16")),
    "float32": Arm(engine=(CpuLanguageEngine, "float32")),
}
"""Updates by verl's engine, by this package's engine for CPUs, and by the latter in float32."""
STUDIES: Mapping[str, Mapping[str, Arm]] = {
    "order": ORDERS,
    "order_rates": at_rates({name: ORDERS[name] for name in ("groups", "completion")}, [5e-4, 2e-3, 4e-3]),
    "truncated_grpo_fixed": GROUPS,
    "truncated_grpo_growing": growing(GROUPS),
    "truncated_gae_fixed": CRITIC,
    "truncated_gae_growing": growing(CRITIC),
    "staleness": STALENESS,
    "engine": ENGINES,
}
"""Arms of each study by name; the first one is the reference of paired differences."""
