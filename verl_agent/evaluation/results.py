"""What an evaluation measured, from the records of its episodes: rates, intervals, pass@k, comparison by task."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from verl_agent.errors import ConfigError
from verl_agent.evaluation.statistics import Estimate, mean_over_items, paired_difference, pass_at_k, wilson_interval
from verl_agent.trace.metrics import EpisodeSummary, summarize
from verl_agent.trace.record import EpisodeRecord, to_episode

ALL = "all"
"""Name of the result over every category."""
INVALID_ACTION = "invalid_action"
"""Measurement by which an environment reports a reply that it could not read or carry out."""


@dataclass(frozen=True, slots=True)
class CategoryResult:
    """What one category of tasks, or all, gave. Rates and means are over sound episodes; None without any.

    Attributes:
        category: its name, or `ALL`.
        items: tasks with a sound episode.
        episodes: sound episodes.
        faults: episodes whose environment failed to the end; part of no rate.
        success: share that was solved, each task weighing the same.
        pass_at: by k, the chance that one of k samples of a task solves it, over tasks with k sound episodes.
        reward_mean: return, in the environment's own units.
        turns_mean: replies.
        tokens_mean: tokens that the model wrote.
        invalid_share: invalid actions a turn.
        stops: episodes by the reason why they ended, faults included.
    """

    category: str
    items: int
    episodes: int
    faults: int
    success: Estimate | None
    pass_at: Mapping[int, float]
    reward_mean: float | None
    turns_mean: float | None
    tokens_mean: float | None
    invalid_share: float | None
    stops: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two evaluations of the same tasks.

    Attributes:
        category: name of the category, or `ALL`.
        before: success over the tasks that both have.
        after: likewise.
        difference: after minus before, paired by task.
        unpaired: tasks that only one of them has; left out.
    """

    category: str
    before: float
    after: float
    difference: Estimate
    unpaired: int


@dataclass(frozen=True, slots=True)
class _Played:
    task: str
    summary: EpisodeSummary


def final_records(records: Iterable[EpisodeRecord]) -> list[EpisodeRecord]:
    """The last try of each episode: replays of a failed environment follow it in the file."""
    return list({(record["env"], record["task"], record["sample"]): record for record in records}.values())


def results(records: Iterable[EpisodeRecord]) -> list[CategoryResult]:
    """One result for each category, in natural order, and one for all tasks at the end; empty without records."""
    played = _played(records)
    if not played:
        return []
    return [*(_result(name, part) for name, part in _by_category(played).items()), _result(ALL, played)]


def compare(before: Iterable[EpisodeRecord], after: Iterable[EpisodeRecord]) -> list[Comparison]:
    """Success of `after` less that of `before`, task by task: each category that both have, and all at the end.

    The interval is over tasks (`paired_difference`), so that several samples of a task count as one draw.

    Raises:
        ConfigError: the two share no task with a sound episode.
    """
    old, new = ([one for one in _played(records) if one.summary.valid] for records in (before, after))
    overall = _comparison(ALL, old, new)
    if overall is None:
        raise ConfigError("the two evaluations share no task. Evaluate both on the same tasks to compare them.")
    old_parts, new_parts = _by_category(old), _by_category(new)
    parts = [_comparison(name, old_parts[name], new_parts[name]) for name in old_parts if name in new_parts]
    return [*(part for part in parts if part is not None), overall]


def validation_gain(records: Iterable[EpisodeRecord]) -> tuple[int, int, Comparison] | None:
    """The first and the last validated step of a run, and the comparison of the two over all tasks.

    Returns:
        None if fewer than two steps were validated.
    """
    by_step: dict[int, list[EpisodeRecord]] = defaultdict(list)
    for record in records:
        if record["purpose"] == "validation":
            by_step[record["step"]].append(record)
    if len(by_step) < 2:
        return None
    first, last = min(by_step), max(by_step)
    return first, last, compare(by_step[first], by_step[last])[-1]


def success_estimate(solved_by_item: Mapping[str, Sequence[float]]) -> Estimate:
    """Share of solved samples with an interval over items.

    One sample each gives Wilson's interval, several the clustered one. Where all items agree, on 0 or on 1, the
    clustered one has no width; Wilson's over items is then the honest, wider answer.

    Args:
        solved_by_item: 0.0 or 1.0 for each sample of each item; at least one of both.
    """
    values = [value for samples in solved_by_item.values() for value in samples]
    items = len(solved_by_item)
    if len(values) == items or len(set(values)) == 1:
        return wilson_interval(round(fmean(values) * items), items)
    estimate = mean_over_items(solved_by_item)
    return Estimate(estimate.mean, max(0.0, estimate.low), min(1.0, estimate.high), items)


def _played(records: Iterable[EpisodeRecord]) -> list[_Played]:
    return [_Played(record["task"], summarize(to_episode(record))) for record in final_records(records)]


def _by_category(played: Sequence[_Played]) -> dict[str, list[_Played]]:
    parts: dict[str, list[_Played]] = defaultdict(list)
    for one in played:
        if one.summary.category:
            parts[one.summary.category].append(one)
    return {name: parts[name] for name in sorted(parts, key=_natural)}


def _natural(name: str) -> list[tuple[int, str]]:
    """Sorts `depth 10` behind `depth 2`."""
    return [(int(part), "") if part.isdecimal() else (0, part) for part in re.split(r"(\d+)", name)]


def _solved_by_item(played: Iterable[_Played]) -> dict[str, list[float]]:
    solved: dict[str, list[float]] = defaultdict(list)
    for one in played:
        solved[one.task].append(float(one.summary.success))
    return dict(solved)


def _result(category: str, played: Sequence[_Played]) -> CategoryResult:
    valid = [one.summary for one in played if one.summary.valid]
    solved = _solved_by_item(one for one in played if one.summary.valid)
    turns = sum(summary.turns for summary in valid)
    invalid = sum(summary.info.get(INVALID_ACTION, 0.0) for summary in valid)
    return CategoryResult(
        category=category,
        items=len(solved),
        episodes=len(valid),
        faults=len(played) - len(valid),
        success=success_estimate(solved) if solved else None,
        pass_at=_pass_at(solved),
        reward_mean=fmean(summary.reward for summary in valid) if valid else None,
        turns_mean=turns / len(valid) if valid else None,
        tokens_mean=fmean(summary.tokens for summary in valid) if valid else None,
        invalid_share=invalid / turns if turns else None,
        stops=dict(Counter(str(one.summary.stop) for one in played).most_common()),
    )


def _pass_at(solved_by_item: Mapping[str, Sequence[float]]) -> dict[int, float]:
    """By k = 1, 2, 4, ... and the largest number of samples."""
    most = max(map(len, solved_by_item.values()), default=0)
    ks = sorted({2**power for power in range(most.bit_length())} | {most}) if most else []
    return {
        k: fmean(
            pass_at_k(len(solved), round(sum(solved)), k) for solved in solved_by_item.values() if len(solved) >= k
        )
        for k in ks
    }


def _comparison(category: str, before: Sequence[_Played], after: Sequence[_Played]) -> Comparison | None:
    old, new = _solved_by_item(before), _solved_by_item(after)
    both = old.keys() & new.keys()
    if not both:
        return None
    old_both, new_both = ({item: side[item] for item in sorted(both)} for side in (old, new))
    return Comparison(
        category=category,
        before=mean_over_items(old_both).mean,
        after=mean_over_items(new_both).mean,
        difference=paired_difference(new_both, old_both),
        unpaired=len(old.keys() ^ new.keys()),
    )
