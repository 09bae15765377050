"""Calibration of a critic: the values that it predicted before each turn, and the returns that followed.

A critic whose values are too high or too low, or that do not follow the return, gives advantages that mislead the
update. Explained variance is the measure of Stable-Baselines3 and of verl (`critic/vf_explained_var`); bins show where
the critic is wrong.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean, pvariance
from typing import Any

from verl_agent.config.mixture import run_envs
from verl_agent.config.reward_shaping import RewardShaping
from verl_agent.config.settings import RunEnv
from verl_agent.errors import ConfigError
from verl_agent.results.statistics import Estimate, mean_over_tasks
from verl_agent.returns import sum_rewards
from verl_agent.runs.identity import SETTINGS_FILE, read_settings
from verl_agent.trace.record import EpisodeRecord, env_label, to_episode
from verl_agent.trace.token_files import TurnValue, read_turn_values

BINS = 10
TOLERANCE = 1e-4
"""Largest difference of a shaped return to the recorded one."""
FindRecord = Callable[[str, int], EpisodeRecord | None]
"""Returns the last attempt at an episode of the step, by group and sample; None if it is not recorded."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """Prediction at the beginning of one turn.

    Attributes:
        group: group of the episode; episodes of a group play the same task.
        value: critic's value before the first token of the reply.
        realized: discounted sum of the shaped rewards from this turn on.
    """

    group: str
    value: float
    realized: float


@dataclass(frozen=True, slots=True)
class CalibrationBin:
    """Turns with similar predictions.

    Attributes:
        value: mean prediction, each group with the same weight.
        realized: mean return that followed, likewise, with a t interval over groups; of one group it has no width.
    """

    turns: int
    value: float
    realized: Estimate


@dataclass(frozen=True, slots=True)
class Calibration:
    """Comparison of predictions with returns.

    Attributes:
        bias: mean prediction minus mean return.
        explained_variance: `1 - Var(realized - value) / Var(realized)`: 1 is perfect, 0 is as good as a constant;
            None if all returns are equal.
        bins: bins of about equal size, by rising prediction.
    """

    turns: int
    groups: int
    bias: float
    explained_variance: float | None
    bins: list[CalibrationBin]


def read_values(file: Path) -> dict[tuple[str, int], dict[int, TurnValue]]:
    """Return the critic's values in a file of token data, see `read_turn_values`.

    Raises:
        ConfigError: the file is missing or of another kind, or the run has no critic.
    """
    try:
        values = read_turn_values(file)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file} holds no token data that can be read: {error}") from error
    if not values:
        raise ConfigError(f"{file} holds no values: the run has no critic.")
    return values


def predictions(
    run: Path, values: Mapping[tuple[str, int], Mapping[int, TurnValue]], find: FindRecord
) -> list[Prediction]:
    """Return a prediction for each turn of each recorded episode.

    An episode is left out if it has no record, or if its return is that of the critic itself: truncated and
    bootstrapped.

    Args:
        run: folder of the run, whose settings say how rewards are shaped and discounted.

    Raises:
        ConfigError: the settings of the run are missing or invalid.
    """
    settings = read_settings(run)
    if not settings:
        raise ConfigError(f"{run / SETTINGS_FILE} is missing, so the rewards of the update are not known.")
    algorithm = settings.get("algorithm") or {}
    envs = run_envs(settings)
    found: list[Prediction] = []
    for (group, sample), of_turns in values.items():
        record = find(group, sample)
        if record is None:
            continue
        credit = _credit_of(record, envs)
        if credit is None or (credit.truncated == "bootstrap" and to_episode(record).truncated):
            continue
        returns = _returns(credit, algorithm, credit.rewards(to_episode(record)), of_turns)
        found += [
            Prediction(group, of_turns[turn].value, realized) for turn, realized in returns.items() if turn in of_turns
        ]
    return found


def _credit_of(record: EpisodeRecord, envs: Iterable[RunEnv]) -> RewardShaping | None:
    """Return the settings of the record's environment; None if they do not give the recorded shaped return."""
    credit = next((one.credit for one in envs if one.label == env_label(record)), None)
    if credit is None:
        return None
    recorded, found = record.get("shaped_return", record["reward"]), sum_rewards(credit.rewards(to_episode(record)))
    return credit if abs(found - recorded) <= TOLERANCE else None


def _returns(
    credit: RewardShaping, algorithm: Mapping[str, Any], rewards: Sequence[float], of_turns: Mapping[int, TurnValue]
) -> dict[int, float]:
    """Return the discounted sum of rewards from each turn on.

    A critic of turns (`turn_gae`) discounts each turn by `credit.turn_gamma`. One of tokens discounts each token that
    the model wrote by `algorithm.gamma`, and a turn's reward follows its last token.
    """
    by_turn = algorithm.get("adv_estimator") == "turn_gae"
    gamma = float(algorithm.get("gamma", 1.0))
    realized: dict[int, float] = {}
    following = 0.0
    for turn in reversed(range(len(rewards))):
        tokens = of_turns[turn].tokens if turn in of_turns else 1
        if by_turn:
            following = rewards[turn] + credit.turn_gamma * following
        else:
            following = gamma ** (tokens - 1) * rewards[turn] + gamma**tokens * following
        realized[turn] = following
    return realized


def calibrate(found: Sequence[Prediction], bins: int = BINS) -> Calibration:
    """Compare predictions with returns.

    Args:
        bins: most bins, >= 1.

    Raises:
        ConfigError: there is no prediction.
    """
    if not found:
        raise ConfigError("no episode with values has a record, so the critic cannot be compared with returns.")
    ordered = sorted(found, key=lambda one: one.value)
    count = min(bins, len(ordered))
    edges = [round(number * len(ordered) / count) for number in range(count + 1)]
    spread = pvariance(one.realized for one in found)
    rest = pvariance(one.realized - one.value for one in found)
    return Calibration(
        turns=len(found),
        groups=len({one.group for one in found}),
        bias=fmean(one.value - one.realized for one in found),
        explained_variance=1 - rest / spread if spread > 1e-12 else None,
        bins=[_bin(ordered[low:high]) for low, high in pairwise(edges)],
    )


def _bin(part: Sequence[Prediction]) -> CalibrationBin:
    values: dict[str, list[float]] = defaultdict(list)
    realized: dict[str, list[float]] = defaultdict(list)
    for one in part:
        values[one.group].append(one.value)
        realized[one.group].append(one.realized)
    return CalibrationBin(len(part), mean_over_tasks(values).mean, mean_over_tasks(realized))
