"""History of a run that findings look at: means of each purpose and step, the metrics log, and what changed when."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import fmean, variance
from typing import Any, NamedTuple

from verl_agent.results.statistics import t_quantile
from verl_agent.trace.behaviors import BEHAVIORS
from verl_agent.trace.metrics_log import MetricsLog, first_logged
from verl_agent.types import StopReason

LATEST = 10
"""Number of latest training steps that are looked at."""
SUMMED = ("reward", "success", "turns", "tokens", "seconds", *(behavior.name for behavior in BEHAVIORS))
"""Columns of an episode that are summed."""
LARGEST = 1e100
"""Largest size of a number in a history: fits and variances add up squares."""
LEARNING_RATE = "actor/lr"
NORMAL_95 = 1.96
"""Quantile of the normal distribution, of an interval of 95 %."""
FREEDOM = 3
"""Fewest degrees of freedom of a t interval of values whose errors are known."""
JUMP = 1.5
"""Ratio of the learning rates of two steps from which it is a change; warmup and decay change less."""


@dataclass(frozen=True, slots=True)
class StepSummary:
    """Means over the episodes of one purpose and step.

    Attributes:
        episodes: number of valid episodes; the means are over them.
        env_errors: number of episodes that ended with an environment error.
        started_at: start of the first episode, ISO 8601.
        behaviors: turns that show a behavior over all turns, by its name.
        measured: number of solved episodes of tasks whose oracle is known.
        short: number of these that took fewer turns than the oracle.
    """

    step: int
    purpose: str
    episodes: int
    env_errors: int
    reward: float
    success: float
    turns: float
    max_turns: int
    tokens: int
    seconds: float
    started_at: str
    stops: dict[str, float]
    behaviors: dict[str, float]
    measured: int = 0
    short: int = 0

    @property
    def cut(self) -> float:
        """Share of the episodes that a token budget cut."""
        return sum(self.stops.get(reason, 0.0) for reason in (StopReason.TURN_TOKENS, StopReason.EPISODE_TOKENS))


@dataclass(frozen=True, slots=True)
class RunHistory:
    """Everything that findings look at.

    Attributes:
        steps: means of each purpose and step.
        uniform: number of groups with equal returns and of all groups, by training step.
        needed_turns: number of tasks by the turns that they need.
        copies: share of the training episodes with the commonest list of actions, if several tasks have it, by step.
        errors: number of environment errors by their first line.
        log: metrics log; where records of a step are missing, its values take their place.
    """

    steps: Sequence[StepSummary]
    uniform: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    needed_turns: Mapping[int, int] = field(default_factory=dict)
    copies: Mapping[int, float] = field(default_factory=dict)
    errors: Mapping[str, int] = field(default_factory=dict)
    log: MetricsLog = field(default_factory=MetricsLog)

    @property
    def train(self) -> list[StepSummary]:
        """Training steps with a valid episode."""
        return [at for at in self.steps if at.purpose == "train" and at.episodes]

    @property
    def played(self) -> list[StepSummary]:
        """Training steps with a valid episode or one that ended with an environment error."""
        return [at for at in self.steps if at.purpose == "train" and at.episodes + at.env_errors]

    def bounded(self) -> "RunHistory":
        """Return the history with numbers of which sums of squares are finite; 0 stands for NaN."""
        steps = [replace(at, reward=_bounded(at.reward)) if at.episodes else at for at in self.steps]
        logged = {
            step: {name: _bounded(one) for name, one in found.items()} for step, found in self.log.by_step.items()
        }
        return replace(self, steps=steps, log=replace(self.log, by_step=logged))

    def series(self, of: Callable[[StepSummary], float], *logged: str) -> dict[int, float]:
        """Return a mean of the training episodes by step.

        Args:
            of: the mean in a summary.
            logged: names in the metrics log, the first one that it has.
        """
        found = first_logged(self.log.by_step, *logged) | {at.step: of(at) for at in self.train}
        return dict(sorted(found.items()))

    def measure(self, purpose: str = "train") -> dict[int, float]:
        """Return success by step; the mean return where no episode of the purpose is ever solved."""
        chosen = [at for at in self.steps if at.purpose == purpose and at.episodes]
        solved = any(at.success for at in chosen)
        found = {at.step: at.success if solved else at.reward for at in chosen}
        if purpose == "train":
            names = ("episode/success_rate",) if solved else ("episode/reward_mean", "critic/score/mean")
            found = first_logged(self.log.by_step, *names) | found
        return dict(sorted(found.items()))

    def deviations(self, purpose: str = "train") -> dict[int, float]:
        """Return the standard error of each success that `measure` returns, as Agresti and Coull do; empty for returns.

        Empty, too, where a step has a success in the metrics log alone, whose number of episodes is not known.
        """
        chosen = {at.step: at for at in self.steps if at.purpose == purpose and at.episodes}
        if not any(at.success for at in chosen.values()) or self.measure(purpose).keys() != chosen.keys():
            return {}
        shares = {step: ((at.success * at.episodes + 2) / (at.episodes + 4), at) for step, at in chosen.items()}
        return {step: (share * (1 - share) / (at.episodes + 4)) ** 0.5 for step, (share, at) in shares.items()}

    @property
    def validation(self) -> str:
        """Purpose of the validations: `validation`, or `test` where more of these were played."""
        return max(("validation", "test"), key=lambda purpose: len(self.measure(purpose)))

    @property
    def validated(self) -> dict[int, float]:
        """Success or return of the validations by step."""
        return self.measure(self.validation)

    def improves(self, since: int) -> bool:
        """Return True if validation or training is better than before a step for sure, and the other is no worse.

        If training is better for sure, the validations have to be better, too, though perhaps not for sure: a reward
        that is hacked rises in training alone. Without validations after the step, training decides.
        """
        training = self._change(since, "train")
        if len(self.validated) < 3 or not any(step > since for step in self.validated):
            return training.sure > 0
        validation = self._change(since, self.validation)
        if training.sure > 0:
            return validation.sure >= 0 and validation.mean > 0
        return training.sure == 0 and validation.sure > 0

    def _change(self, since: int, purpose: str) -> "Change":
        return change_of(self.measure(purpose), since, self.deviations(purpose))

    def last_steps(self, since: int) -> list[StepSummary]:
        """Return the latest training steps, but none before a step."""
        train = self.train[-LATEST:]
        return [at for at in train if at.step >= since] or train[-1:]

    def changes(self, step: int) -> str:
        """Return a sentence on the turn limit, the learning rate and the starts that changed near a step, or "".

        Where limits differ within a step, the largest one changes by chance and is not told.
        """
        steps = sorted({at.step for at in self.train} | set(self.log.by_step))
        near = max(2, (steps[-1] - steps[0]) // 20)
        limits = self.series(lambda at: at.max_turns, "episode/horizon")
        means = first_logged(self.log.by_step, "episode/horizon_mean")
        differ = any(mean < limits.get(at, 0) for at, mean in means.items())
        jumps = [] if differ else _jumps(limits, 1.0)
        found = [(at, f"the turn limit went from {old:g} to {new:g}") for at, old, new in jumps]
        rates = first_logged(self.log.by_step, LEARNING_RATE)
        found += [(at, f"the learning rate went from {old:.1e} to {new:.1e}") for at, old, new in _jumps(rates, JUMP)]
        found += [(at, "the run was resumed") for at in self.log.resumed]
        texts = [f"{text} at step {at}" for at, text in sorted(found) if abs(at - step) <= near]
        return f" What changed there: {', '.join(texts)}." if texts else ""


def _bounded(value: float) -> float:
    return 0.0 if math.isnan(value) else max(-LARGEST, min(LARGEST, value))


def _jumps(values: Mapping[int, float], ratio: float) -> list[tuple[int, float, float]]:
    """Return step, old and new value of each change by more than a ratio."""
    found = pairwise(sorted(values.items()))
    return [(at, a, b) for (_, a), (at, b) in found if a > 0 and b > 0 and max(a / b, b / a) > ratio]


class Change(NamedTuple):
    """Latest mean minus an earlier one: as it is, and 0 if 0 is in its 95 % interval."""

    mean: float
    sure: float


def change_since(values: Mapping[int, float], since: int, errors: Mapping[int, float] | None = None) -> float:
    """Return the latest mean minus that before a step; 0 if 0 is in the 95 % interval of the difference."""
    return change_of(values, since, errors).sure


def change_of(values: Mapping[int, float], since: int, errors: Mapping[int, float] | None = None) -> Change:
    """Return the change of a mean since a step.

    Both means are over at most `LATEST` values, of which those before the step are the last ones, or the first one.
    The interval is the wider one of Welch's t interval over the values and, where they are known, of that from the
    errors of the values. Where these are known, fewer than `FREEDOM` degrees of freedom have no t interval: with one
    degree it is twelve times the error. Without either, as for two values of unknown error, nothing is known to have
    changed.

    Args:
        errors: standard error of each value, from the episodes of its step.
    """
    steps = sorted(values)
    window = max(1, min(LATEST, len(steps) // 3))
    before = [step for step in steps if step < since][-window:] or steps[:window]
    late = [step for step in steps if step not in before and step >= since][-window:]
    if not late:
        return Change(0.0, 0.0)
    parts = (before, late)
    spread = sum(variance([values[at] for at in part]) / len(part) for part in parts if len(part) > 1) ** 0.5
    freedom = len(before) + len(late) - 2
    margins = [t_quantile(0.975, freedom) * spread] if freedom >= (FREEDOM if errors else 1) else []
    if errors:
        known = sum(fmean(errors[at] ** 2 for at in part) / len(part) for part in parts) ** 0.5
        margins.append(NORMAL_95 * known)
    least = 0.05 * max(abs(value) for value in values.values())
    change = fmean(values[at] for at in late) - fmean(values[at] for at in before)
    return Change(change, change if margins and abs(change) > max(*margins, least) else 0.0)


def summarize_step(step: int, purpose: str, by_stop: Sequence[Mapping[str, Any]]) -> StepSummary:
    """Return the means of one purpose and step.

    Args:
        by_stop: sums over the episodes of each stop reason, those in which a person intervened apart: `episodes`,
            `measured`, `short`, and the columns of an episode.
    """
    every = sum(row["episodes"] for row in by_stop)
    valid = [row for row in by_stop if StopReason(row["stop"]).valid and not row["operated"]]
    count, turns = sum(row["episodes"] for row in valid), sum(row["turns"] for row in valid)
    stops = Counter[str]()
    for row in by_stop:
        stops[row["stop"]] += row["episodes"]

    def mean(name: str) -> float:
        return sum(row[name] for row in valid) / count if count else float("nan")

    return StepSummary(
        step=step,
        purpose=purpose,
        episodes=count,
        env_errors=stops[StopReason.ENV_ERROR],
        reward=mean("reward"),
        success=mean("success"),
        turns=mean("turns"),
        max_turns=max(row["max_turns"] for row in by_stop),
        tokens=sum(row["tokens"] for row in valid),
        seconds=mean("seconds"),
        started_at=min(row["started_at"] for row in by_stop),
        stops={stop: episodes / every for stop, episodes in stops.items()},
        behaviors={
            behavior.name: sum(row[behavior.name] for row in valid) / turns if turns else 0.0 for behavior in BEHAVIORS
        },
        measured=sum(row["measured"] for row in valid),
        short=sum(row["short"] for row in valid),
    )


def first_line(error: str) -> str:
    """Return the first line of an error, at most 200 characters."""
    return (error.strip().splitlines() or [""])[0][:200]
