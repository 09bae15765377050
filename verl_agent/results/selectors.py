"""Best-of-n: success of the episode that a selector chooses among the samples of a task."""

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb
from pathlib import Path
from statistics import fmean
from typing import TypeAlias

from verl_agent.results.scaling import interval_of_shares, valid_records
from verl_agent.results.statistics import Estimate, mean_return
from verl_agent.trace.record import EpisodeRecord, TaskKey, task_key
from verl_agent.trace.token_files import column_names, read_token_columns, token_files
from verl_agent.trace.turn_record import turn_text

MOST_SUBSETS = 200
"""Subsets of k samples of a task that are averaged; more are drawn at random."""
ALL_SIZES = 16
"""Largest number of samples up to which each number is a point; beyond it, powers of two and all samples are."""
LOGPROBS = "inference_logprobs"

Selector: TypeAlias = Callable[[Sequence[EpisodeRecord]], Sequence[float]]
"""Returns the weight of each sample, the probability that it is chosen; ties are broken at random."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Success of a selector by the number of samples that it chooses from.

    Attributes:
        meaning: episode that is chosen.
        upper_bound: True if the selector knows the outcome, which no agent does.
        returns: mean return of the chosen episode, by the same numbers.
        missing: reason for which the selector does not apply; empty otherwise.
    """

    name: str
    meaning: str
    upper_bound: bool
    points: Mapping[int, Estimate]
    returns: Mapping[int, Estimate]
    missing: str = ""


def best_of_n(
    records: Sequence[EpisodeRecord], folder: Path, seed: int = 0, count_operated: bool = False
) -> list[Selection]:
    """Return success and mean return of all selectors by number of samples; empty with one sample per task.

    The numbers are those of `sizes`. The value at k is the mean over subsets of k samples of a task, and over tasks.

    Args:
        seed: seed of the subsets where there are more than `MOST_SUBSETS`.
        count_operated: see `summarize`.
    """
    by_task: dict[TaskKey, list[EpisodeRecord]] = defaultdict(list)
    for record in valid_records(records, count_operated):
        by_task[task_key(record)].append(record)
    most = max(map(len, by_task.values()), default=0)
    if most < 2:
        return []
    whole = {task: samples for task, samples in by_task.items() if len(samples) == most}
    log_probs = mean_log_probs(folder)
    known = all((one["group"], one["sample"]) in log_probs for samples in whole.values() for one in samples)

    def by_log_prob(samples: Sequence[EpisodeRecord]) -> list[float]:
        return _best([log_probs[one["group"], one["sample"]] for one in samples])

    every: list[tuple[str, str, bool, Selector | None, str]] = [
        ("first", "the first sample, without a choice", False, lambda samples: _best([0] * len(samples)), ""),
        ("majority", "the most frequent last action", False, majority, ""),
        ("shortest", "the fewest turns", False, lambda samples: _best([-len(one["turns"]) for one in samples]), ""),
        ("log-prob", "the highest mean log-prob of its tokens", False, by_log_prob if known else None,
         "" if known else "no log-probs are recorded for all samples; evaluate with evaluation.logprobs=1"),
        ("oracle", "a solved sample if there is one (pass@k)", True,
         lambda samples: _best([one["success"] for one in samples]), ""),
    ]  # fmt: skip
    return [
        Selection(name, meaning, bound, *(_points(whole, most, select, seed) if select else ({}, {})), missing)
        for name, meaning, bound, select, missing in every
    ]


def majority(samples: Sequence[EpisodeRecord]) -> list[float]:
    """Return the weights of a choice of the most frequent last action.

    Meant for tasks that end with an answer. Samples without an action count only if no sample has one.
    """
    answers = [_last_action(one) for one in samples]
    counts: Counter[str | None] = Counter(answer for answer in answers if answer is not None) or Counter(answers)
    return _best([counts[answer] for answer in answers])


def mean_log_probs(folder: Path) -> dict[tuple[str, int], float]:
    """Return the mean log-prob of the tokens that the model wrote, by group and sample, where it is recorded."""
    values: dict[tuple[str, int], list[float]] = defaultdict(list)
    for file in token_files(folder):
        if LOGPROBS in column_names(file):
            for row in read_token_columns(file, ("group", "sample", LOGPROBS)):
                values[row["group"], row["sample"]] += [value for value in row[LOGPROBS] or () if value is not None]
    return {key: fmean(found) for key, found in values.items() if found}


def _points(
    whole: Mapping[TaskKey, Sequence[EpisodeRecord]], most: int, select: Selector, seed: int
) -> tuple[dict[int, Estimate], dict[int, Estimate]]:
    """Return success and mean return of the chosen episode by number of samples."""
    solved, earned = dict[int, Estimate](), dict[int, Estimate]()
    largest = max(one["success_reward"] for samples in whole.values() for one in samples)
    for k in sizes(most):
        shares, returns = dict[TaskKey, float](), dict[TaskKey, list[float]]()
        for task, samples in whole.items():
            chosen = [(part, select(part)) for part in _subsets(samples, k, f"{seed}/{task[1]}/{k}")]
            shares[task] = min(1.0, fmean(_mean(weights, [one["success"] for one in part]) for part, weights in chosen))
            returns[task] = [fmean(_mean(weights, [one["reward"] for one in part]) for part, weights in chosen)]
        solved[k], earned[k] = interval_of_shares(shares), mean_return(returns, largest)
    return solved, earned


def sizes(most: int) -> list[int]:
    """Return the numbers of samples with a point.

    Example:
        >>> sizes(3), sizes(91)[-4:]
        ([1, 2, 3], [16, 32, 64, 91])
    """
    return [k for k in range(1, most + 1) if k <= ALL_SIZES or k.bit_count() == 1 or k == most]


def _subsets(samples: Sequence[EpisodeRecord], k: int, seed: str) -> list[tuple[EpisodeRecord, ...]]:
    if comb(len(samples), k) <= MOST_SUBSETS:
        return list(combinations(samples, k))
    draws = random.Random(seed)
    return [tuple(draws.sample(samples, k)) for _ in range(MOST_SUBSETS)]


def _best(values: Sequence[float]) -> list[float]:
    """Return equal weights for the samples with the highest value."""
    highest = max(values)
    share = 1 / sum(value == highest for value in values)
    return [share if value == highest else 0.0 for value in values]


def _mean(weights: Sequence[float], values: Sequence[float]) -> float:
    return sum(weight * value for weight, value in zip(weights, values, strict=True))


def _last_action(record: EpisodeRecord) -> str | None:
    action = next((text for turn in reversed(record["turns"]) if (text := turn_text(turn)) is not None), None)
    return None if action is None else " ".join(action.split()).lower()
