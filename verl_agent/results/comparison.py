"""Comparison of two evaluations, paired by task: success and return."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from verl_agent.errors import ConfigError
from verl_agent.results.results import (
    ALL,
    CountedEpisode,
    by_category,
    counted_episodes,
    returns_by_task,
    solved_by_task,
)
from verl_agent.results.statistics import Estimate, mean_over_tasks, mean_return, paired_difference
from verl_agent.trace.record import EpisodeRecord, Purpose


@dataclass(frozen=True, slots=True)
class Comparison:
    """Comparison of two evaluations on the tasks that both have played.

    Attributes:
        before: success rate of the first; each task has the same weight, here and below.
        after: success rate of the second.
        difference: `after` minus `before`, paired by task.
        return_before: mean return of the first.
        return_after: mean return of the second.
        return_difference: `return_after` minus `return_before`, paired by task.
        unpaired: number of tasks that only one of them has played; these are left out.
    """

    category: str
    before: float
    after: float
    difference: Estimate
    return_before: float
    return_after: float
    return_difference: Estimate
    unpaired: int


def compare(before: Iterable[EpisodeRecord], after: Iterable[EpisodeRecord]) -> list[Comparison]:
    """Compare two evaluations by task: one comparison per shared category, and one over all tasks at the end.

    Intervals are over tasks (`paired_difference`, `mean_return`), so several samples of a task count as one draw.

    Raises:
        ConfigError: the evaluations share no task with a valid episode.
    """
    return compare_counted(counted_episodes(before), counted_episodes(after))


def compare_counted(old: Sequence[CountedEpisode], new: Sequence[CountedEpisode]) -> list[Comparison]:
    """Compare the episodes of two evaluations; see `compare`."""
    overall = _comparison(ALL, old, new)
    if overall is None:
        raise ConfigError(
            "the two evaluations share no task with a valid episode. Evaluate both on the same tasks to compare them."
        )
    oldby_category, newby_category = by_category(old), by_category(new)
    shared = [name for name in oldby_category if name in newby_category]
    comparisons = [_comparison(name, oldby_category[name], newby_category[name]) for name in shared]
    return [*(one for one in comparisons if one is not None), overall]


def compare_with_baseline(
    baseline: Sequence[CountedEpisode], episodes: Sequence[CountedEpisode]
) -> tuple[list[Comparison], str]:
    """Return the comparisons, else the reason for their absence; both are empty without a baseline."""
    try:
        return compare_counted(baseline, episodes) if baseline else [], ""
    except ConfigError as error:
        return [], str(error)


def validation_gain(
    records: Iterable[EpisodeRecord], purpose: Purpose = "validation"
) -> tuple[int, int, Comparison] | None:
    """Return the first and the last validated step of a run and the comparison of the two over all tasks.

    Args:
        purpose: `validation` for the development tasks, `test` for the test tasks.

    Returns:
        None if fewer than two steps were played for that purpose.
    """
    by_step: dict[int, list[EpisodeRecord]] = defaultdict(list)
    for record in records:
        if record["purpose"] == purpose:
            by_step[record["step"]].append(record)
    if len(by_step) < 2:
        return None
    first, last = min(by_step), max(by_step)
    return first, last, compare(by_step[first], by_step[last])[-1]


def _comparison(category: str, before: Sequence[CountedEpisode], after: Sequence[CountedEpisode]) -> Comparison | None:
    solved = [solved_by_task(side) for side in (before, after)]
    both = sorted(solved[0].keys() & solved[1].keys())
    if not both:
        return None
    earned = [returns_by_task(side) for side in (before, after)]
    old, new, old_returns, new_returns = ({task: side[task] for task in both} for side in (*solved, *earned))
    return Comparison(
        category=category,
        before=mean_over_tasks(old).mean,
        after=mean_over_tasks(new).mean,
        difference=paired_difference(new, old),
        return_before=mean_over_tasks(old_returns).mean,
        return_after=mean_over_tasks(new_returns).mean,
        return_difference=mean_return(new_returns, max(one.success_reward for one in (*before, *after)), old_returns),
        unpaired=len(solved[0].keys() ^ solved[1].keys()),
    )
