"""Test-time scaling: success and return of one evaluation over turns, samples, tokens and cost."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from verl_agent.results.results import final_records
from verl_agent.results.spending import turn_cost, turn_tokens
from verl_agent.results.statistics import Estimate, clustered_wilson_interval, mean_return, pass_at_k, pass_hat_k
from verl_agent.returns import reaches, sum_rewards
from verl_agent.trace.record import EpisodeRecord, TaskKey, is_operated, task_key
from verl_agent.trace.turn_record import TurnRecord
from verl_agent.types import StopReason


def rates_within_turns(
    records: Iterable[EpisodeRecord], count_operated: bool = False
) -> dict[int, tuple[Estimate, Estimate]]:
    """Return success rate and mean return within k turns, for k from 1 to the largest turn limit.

    They are those of an evaluation with turn limit k if the replies do not depend on the limit. Neither the prompt nor
    the context tells it. Intervals are over tasks.

    Args:
        records: records of one evaluation; of the attempts of an episode the last one counts, if it is valid.
        count_operated: see `summarize`.

    Returns:
        An empty dict without a valid episode.
    """
    valid = valid_records(records, count_operated)
    longest = max((record["max_turns"] for record in valid), default=0)
    return {limit: _rates([(record, limit) for record in valid]) for limit in range(1, longest + 1)}


def _rates(played: Sequence[tuple[EpisodeRecord, int]]) -> tuple[Estimate, Estimate]:
    """Return success and mean return of episodes that end after the given numbers of turns."""
    solved: dict[TaskKey, list[float]] = defaultdict(list)
    earned: dict[TaskKey, list[float]] = defaultdict(list)
    for record, limit in played:
        earned[task_key(record)].append(sum_rewards(turn["reward"] for turn in record["turns"][:limit]))
        solved[task_key(record)].append(float(solved_within(record, limit)))
    return clustered_wilson_interval(solved), mean_return(earned, max(one["success_reward"] for one, _ in played))


def solved_within(record: EpisodeRecord, turns: int) -> bool:
    """Return True if the first turns of an episode solved its task."""
    return reaches([turn["reward"] for turn in record["turns"][:turns]], record["success_reward"])


POINTS = 20
"""Number of budgets of tokens or cost on a curve."""


@dataclass(frozen=True, slots=True)
class ScalingCurve:
    """Success rate and mean return by an amount of computation.

    Attributes:
        name: short name: `turns`, `pass@k`, `pass^k`, `tokens` or `cost`.
        points: success rate with its interval, by amount.
        returns: mean return with its interval, by amount; empty for pass@k and pass^k.
    """

    name: str
    meaning: str
    unit: str
    points: Mapping[float, Estimate]
    returns: Mapping[float, Estimate] = field(default_factory=dict)


def scaling_curves(
    records: Sequence[EpisodeRecord], tells_limit: bool = False, count_operated: bool = False
) -> list[ScalingCurve]:
    """Return the curves that the records of one evaluation support.

    Success within a budget is the success rate of an evaluation with that budget if the replies do not depend on it.
    Neither the prompt nor the context tells the budgets of turns, tokens or cost.

    Args:
        records: records of one evaluation; of the attempts of an episode the last one counts, if it is valid.
        tells_limit: True if the agent tells the turns left: its replies depend on the limit then, so there is no curve
            over turns, tokens and cost. A judge that replaces the rewards (`judge.mode=replace`) has the same effect.
        count_operated: see `summarize`.
    """
    valid = valid_records(records, count_operated)
    if not valid:
        return []
    curves = _sample_curves(success_by_task(valid))
    if tells_limit or has_replaced_rewards(valid):
        return curves
    turns = {float(limit): rates for limit, rates in rates_within_turns(valid, count_operated).items()}
    curves.insert(0, ScalingCurve("turns", "solved within k turns", "turns", *_apart(turns)))
    for name, unit, amount in (("tokens", "generated tokens", turn_tokens), ("cost", "USD", turn_cost)):
        if points := _within_budgets(valid, amount):
            curves.append(ScalingCurve(name, f"solved within a budget of {unit} per episode", unit, *_apart(points)))
    return curves


def _apart(points: Mapping[float, tuple[Estimate, Estimate]]) -> tuple[dict[float, Estimate], dict[float, Estimate]]:
    success = {amount: rates[0] for amount, rates in points.items()}
    return success, {amount: rates[1] for amount, rates in points.items()}


def has_replaced_rewards(records: Iterable[EpisodeRecord]) -> bool:
    """Return True if a judge's rewards replace those of the environment: they depend on the whole episode."""
    return any(made["replaced"] is not None for record in records for made in record.get("judgements", ()))


def valid_records(records: Iterable[EpisodeRecord], count_operated: bool = False) -> list[EpisodeRecord]:
    """Return the last attempts of the episodes that measure the policy.

    Args:
        count_operated: see `summarize`.
    """
    ended = [record for record in final_records(records) if StopReason(record["stop"]).valid]
    return [record for record in ended if count_operated or not is_operated(record)]


def success_by_task(valid: Sequence[EpisodeRecord]) -> dict[TaskKey, list[float]]:
    """Return 1.0 or 0.0 for each episode of each task."""
    solved: dict[TaskKey, list[float]] = defaultdict(list)
    for record in valid:
        solved[task_key(record)].append(float(record["success"]))
    return dict(solved)


def interval_of_shares(shares: Mapping[Any, float]) -> Estimate:
    """Return the mean over tasks of shares in 0 to 1, with Wilson's interval over tasks.

    The variance of a share in 0 to 1 with mean p is at most p(1 - p), that of a single success. So the interval
    covers at least as often as it says.
    """
    return clustered_wilson_interval({task: [share] for task, share in shares.items()})


def _sample_curves(solved: Mapping[TaskKey, Sequence[float]]) -> list[ScalingCurve]:
    """Return pass@k and pass^k over the tasks with the most samples; empty with one sample per task."""
    most = max(map(len, solved.values()))
    if most < 2:
        return []
    whole = {task: round(sum(samples)) for task, samples in solved.items() if len(samples) == most}
    at, hat = (
        {
            float(k): interval_of_shares({task: estimator(most, count, k) for task, count in whole.items()})
            for k in range(1, most + 1)
        }
        for estimator in (pass_at_k, pass_hat_k)
    )
    return [
        ScalingCurve("pass@k", "at least one of k samples solves the task", "samples", at),
        ScalingCurve("pass^k", "all of k samples solve the task", "samples", hat),
    ]


def _within_budgets(
    valid: Sequence[EpisodeRecord], amount: Callable[[TurnRecord], float | None]
) -> dict[float, tuple[Estimate, Estimate]]:
    """Return success and return within budgets up to the largest amount of an episode; empty if one is unknown."""
    spending: list[tuple[EpisodeRecord, list[float]]] = []
    for record in valid:
        amounts = [amount(turn) for turn in record["turns"]]
        known = [one for one in amounts if one is not None]
        if len(known) < len(amounts):
            return {}
        spending.append((record, list(accumulate(known))))
    largest = max((spent[-1] for _, spent in spending if spent), default=0.0)
    if not largest:
        return {}
    curve = {}
    for step in range(1, POINTS + 1):
        budget = largest if step == POINTS else float(f"{largest * step / POINTS:.3g}")
        curve[budget] = _rates([(record, bisect_right(spent, budget)) for record, spent in spending])
    return curve
