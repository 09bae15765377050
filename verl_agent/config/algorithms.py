"""Advantage estimators and policy losses: the properties that decide about settings, and those of other packages.

A package registers its own with entry points:

    entry_points={
        "verl_agent.estimators": ["my_estimator = my_package.estimator:MY_ESTIMATOR"],
        "verl_agent.policy_losses": ["my_loss = my_package.loss:my_loss"],
    }

The first is an `Estimator`, the second a function like `verl_agent.training.policy_losses.turn_ratio`.
"""

import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, cast

from verl_agent import registry
from verl_agent.errors import ConfigError

ESTIMATOR = "algorithm.adv_estimator"
"""Key that chooses the estimator."""
LOSS = "actor_rollout_ref.actor.policy_loss.loss_mode"
"""Key that chooses the policy loss."""
ESTIMATOR_GROUP, LOSS_GROUP = "verl_agent.estimators", "verl_agent.policy_losses"


@dataclass(frozen=True, slots=True)
class Estimator:
    """Advantage estimator, with the properties from which the checks of a config follow.

    `function(batch, **options)` reads an `EstimatorBatch` (`verl_agent.training.own_estimators`) and returns
    advantages, float `(B, T)`; with `critic` it returns a pair of advantages and returns, the critic's targets. Its
    keyword-only arguments are the keys of `credit.options`.
    """

    function: Callable[..., Any] | None = None
    """Function of another package; None for the estimators of verl and of this package, which verl finds by name."""
    grouped: bool = False
    """It compares the episodes of one task, so each task needs at least two."""
    critic: Literal["turn", "token"] | None = None
    """Critic that it needs: of the states before replies, or of those before tokens; None for an estimator without."""
    several_rows: bool = True
    """It is right where an agent edits its context, so that an episode has several rows."""
    uniform_is_zero: bool = False
    """A group of equal returns has advantage 0 and does not influence other groups, so it may be left out."""
    rewards: Literal["turn", "token", "episode"] = "turn"
    """Rewards that it reads: of each turn, on the tokens where they are placed, or their sum. Own ones read those of
    turns."""
    bootstraps: bool = False
    """It adds the critic's value of the last state of a bootstrapped episode, `value_after` or `turn_value_after` of
    its last turn, so that `credit.truncated=bootstrap` has an effect."""
    reads: Sequence[str] = ()
    """Settings that it reads and that have no effect otherwise, such as `credit.turn_gamma`."""
    by_role: bool = False
    """It compares each episode with those of its own seat alone, where policies have several seats. `TurnSpan.group`
    and `TurnSpan.role` tell them apart."""
    reference: Callable[..., Any] | None = None
    """The same advantages in plain PyTorch, with the arguments of `function`; `verl-agent check-estimator` compares."""

    @property
    def parts_seats(self) -> bool:
        """True if it suits several trained seats: by roles or groups, or by a critic, which reads the seat's prompt."""
        return self.by_role or self.grouped or self.critic is not None

    @property
    def options(self) -> list[str]:
        """Names of the keyword-only arguments of the function."""
        return inspect.getfullargspec(self.function).kwonlyargs if self.function else []


BUILT_IN = {
    "gae": Estimator(critic="token", several_rows=False, rewards="token", bootstraps=True),
    "gigpo": Estimator(grouped=True),
    "grpo": Estimator(grouped=True, uniform_is_zero=True, rewards="episode"),
    "rae": Estimator(by_role=True),
    "reinforce_plus_plus": Estimator(several_rows=False, rewards="token"),
    "rloo": Estimator(grouped=True, several_rows=False, uniform_is_zero=True, rewards="episode"),
    "turn_gae": Estimator(critic="turn", bootstraps=True),
    "turn_returns": Estimator(),
}
"""Estimators of verl 0.9.1 (trainer/ppo/core_algos.py) that are tested on multi-turn episodes, and those of this
package."""
LOSSES = ("vanilla", "gspo", "turn_ratio")
"""Policy losses of verl that are tested on multi-turn episodes, and that of this package."""


@cache
def find_estimator(name: str) -> Estimator:
    """Return the estimator of a name.

    Raises:
        ConfigError: see `verl_agent.registry.load_registered`; the name is also that of a built-in one.
    """
    if name not in BUILT_IN:
        kind = "an Estimator with a function of the rewards of turns"
        return cast(Estimator, registry.load_registered(ESTIMATOR_GROUP, name, ESTIMATOR, _is_own, kind, BUILT_IN))
    _check_not_hidden(ESTIMATOR_GROUP, ESTIMATOR, name)
    return BUILT_IN[name]


def _check_not_hidden(group: str, key: str, name: str) -> None:
    """Check that no package registers the name of a built-in one, which would be ignored."""
    if package := registry.registered_packages(group).get(name):
        raise ConfigError(f"{key}={name!r} is built in, and the package {package!r} has the same name. Rename it.")


def find_loss(name: str) -> Callable[..., Any] | None:
    """Return the policy loss of another package; None for one that is built in.

    Raises:
        ConfigError: see `verl_agent.registry.load_registered`; the name is also that of a built-in one.
    """
    if name in LOSSES:
        _check_not_hidden(LOSS_GROUP, LOSS, name)
        return None
    return cast(Callable[..., Any], registry.load_registered(LOSS_GROUP, name, LOSS, callable, "a function", LOSSES))


def _is_own(value: object) -> bool:
    return isinstance(value, Estimator) and value.function is not None and value.rewards == "turn"


class Names(Collection[str]):
    """Names that a condition allows or refers to.

    Args:
        listed: returns the names that messages list.
        holds: returns True for each name, also of another package.
    """

    def __init__(self, listed: Callable[[], Iterable[str]], holds: Callable[[str], bool]) -> None:
        self._listed, self._holds = listed, holds

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._holds(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._listed())

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _known(group: str, built_in: Collection[str]) -> Names:
    """Return the names that are built in or registered in a group of entry points."""

    def listed() -> list[str]:
        return [*built_in, *registry.registered_packages(group)]

    return Names(listed, lambda name: name in built_in or name in listed())  # listing reads all installed packages


def _estimators(holds: Callable[[Estimator], bool]) -> Names:
    """Return the names of the estimators with a property; messages list those that are built in."""
    return Names(
        lambda: (name for name, estimator in BUILT_IN.items() if holds(estimator)),
        lambda name: name in KNOWN_ESTIMATORS and holds(find_estimator(name)),
    )


KNOWN_ESTIMATORS, KNOWN_LOSSES = _known(ESTIMATOR_GROUP, BUILT_IN), _known(LOSS_GROUP, LOSSES)
GROUPED = _estimators(lambda one: one.grouped)
"""Estimators that compare the episodes of one task."""
CRITICS = _estimators(lambda one: one.critic is not None)
"""Estimators that use a critic."""
WITHOUT_CRITIC = _estimators(lambda one: one.critic is None)
WITHOUT_BOOTSTRAP = _estimators(lambda one: not one.bootstraps)
"""Estimators that ignore the value of the last state of an episode."""
TURN_CRITICS = _estimators(lambda one: one.critic == "turn")
"""Estimators whose critic learns the value of a turn."""
SWITCHED_CRITICS = _estimators(lambda one: one.critic is not None and one is not BUILT_IN["gae"])
"""Estimators with a critic of which verl does not know."""
TURN_ESTIMATORS = _estimators(lambda one: one.rewards == "turn")
"""Estimators that use the rewards of turns."""
BY_TURN = _estimators(lambda one: one.rewards == "turn" and one is not BUILT_IN["rae"])
"""Estimators whose result depends on the turn that has the reward; `rae` sums them."""
BY_TOKEN = _estimators(lambda one: one.rewards == "token")
"""Estimators whose result depends on the token that has the reward."""
SEVERAL_ROWS = _estimators(lambda one: one.several_rows)
"""Estimators that suit episodes of several rows."""
UNIFORM_IS_ZERO = _estimators(lambda one: one.uniform_is_zero)
"""Estimators with zero advantage for a group of equal rewards, independent of other groups."""
USES_UNIFORM = _estimators(lambda one: not one.uniform_is_zero)


def read_by(name: object) -> tuple[str, ...]:
    """Return the beginnings of the keys that an estimator of another package reads; none for others."""
    if name in BUILT_IN or name not in KNOWN_ESTIMATORS:
        return ()
    estimator = find_estimator(str(name))
    critic = ("critic.", "trainer.critic_warmup") if estimator.critic else ()
    return ("credit.place", *critic, *estimator.reads)
