"""Table of the advantage estimators: their groups, critics, the rewards that they use."""

from typing import Any

ESTIMATOR = "algorithm.adv_estimator"
"""Key that chooses the estimator."""
ESTIMATORS = ("gae", "gigpo", "grpo", "reinforce_plus_plus", "rloo", "turn_gae", "turn_returns")
"""Estimators of verl 0.9.1 (trainer/ppo/core_algos.py) that are tested on multi-turn episodes, and those of this
package."""
GROUPED = ("gigpo", "grpo", "rloo")
"""Estimators that compare the episodes of one task."""
TURN_CRITICS = ("turn_gae",)
"""Estimators whose critic learns the value of a turn."""
CRITICS = ("gae", *TURN_CRITICS)
"""Estimators that use a critic."""
TURN_ESTIMATORS = ("turn_returns", "gigpo", *TURN_CRITICS)
"""Estimators of this package, which use the rewards of turns."""
BY_TOKEN = ("gae", "reinforce_plus_plus")
"""Estimators whose result depends on the token that has the reward."""
UNIFORM_IS_ZERO = ("grpo", "rloo")
"""Estimators with zero advantage for a group of equal rewards, independent of other groups."""


def has_critic(config: Any) -> bool:
    """Return True if verl will train a critic (trainer/ppo/utils.py, `need_critic`)."""
    return bool(config.critic.enable or (config.critic.enable is None and config.algorithm.adv_estimator == "gae"))
