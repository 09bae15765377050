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
from verl_agent.results.statistics import Estimate
from verl_agent.trace.record import EpisodeRecord
from verl_agent.trace.token_files import column_names, read_token_columns, token_files

MOST_SUBSETS = 200
"""Subsets of k samples of a task that are averaged; more are drawn at random."""
LOGPROBS = "inference_logprobs"

Selector: TypeAlias = Callable[[Sequence[EpisodeRecord]], float]
"""Returns the expected success, 0 to 1, of the episode that is chosen; ties are broken at random."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Success of a selector by the number of samples that it chooses from.

    Attributes:
        meaning: episode that is chosen.
        upper_bound: True if the selector knows the outcome, which no agent does.
        missing: reason for which the selector does not apply; empty otherwise.
    """

    name: str
    meaning: str
    upper_bound: bool
    points: Mapping[int, Estimate]
    missing: str = ""


def best_of_n(records: Sequence[EpisodeRecord], folder: Path, seed: int = 0) -> list[Selection]:
    """Return the success of all selectors for 1 to n samples; empty with one sample per task.

    The value at k is the mean over subsets of k samples of a task, and over tasks.

    Args:
        seed: seed of the subsets where there are more than `MOST_SUBSETS`.
    """
    by_task: dict[str, list[EpisodeRecord]] = defaultdict(list)
    for record in valid_records(records):
        by_task[record["task"]].append(record)
    most = max(map(len, by_task.values()), default=0)
    if most < 2:
        return []
    whole = {task: samples for task, samples in by_task.items() if len(samples) == most}
    log_probs = mean_log_probs(folder)
    known = all((one["group"], one["sample"]) in log_probs for samples in whole.values() for one in samples)

    def by_log_prob(samples: Sequence[EpisodeRecord]) -> float:
        return _best(samples, [log_probs[one["group"], one["sample"]] for one in samples])

    every: list[tuple[str, str, bool, Selector | None, str]] = [
        ("first", "the first sample, without a choice", False, _mean_success, ""),
        ("majority", "the most frequent last action", False, majority, ""),
        ("shortest", "the fewest turns", False,
         lambda samples: _best(samples, [-len(one["turns"]) for one in samples]), ""),
        ("log-prob", "the highest mean log-prob of its tokens", False, by_log_prob if known else None,
         "" if known else "no log-probs are recorded for all samples; evaluate with evaluation.logprobs=1"),
        ("oracle", "a solved sample if there is one (pass@k)", True,
         lambda samples: float(any(one["success"] for one in samples)), ""),
    ]  # fmt: skip
    return [
        Selection(name, meaning, bound, _points(whole, most, select, seed) if select else {}, missing)
        for name, meaning, bound, select, missing in every
    ]


def majority(samples: Sequence[EpisodeRecord]) -> float:
    """Return the expected success of a sample with the most frequent last action.

    Meant for tasks that end with an answer. Samples without an action count only if no sample has one.
    """
    answers = [_last_action(one) for one in samples]
    counts: Counter[str | None] = Counter(answer for answer in answers if answer is not None) or Counter(answers)
    most = max(counts.values())
    winners = [answer for answer, count in counts.items() if count == most]
    return fmean(
        fmean(float(one["success"]) for one, answer in zip(samples, answers, strict=True) if answer == winner)
        for winner in winners
    )


def mean_log_probs(folder: Path) -> dict[tuple[str, int], float]:
    """Return the mean log-prob of the tokens that the model wrote, by group and sample, where it is recorded."""
    values: dict[tuple[str, int], list[float]] = defaultdict(list)
    for file in token_files(folder):
        if LOGPROBS in column_names(file):
            for row in read_token_columns(file, ("group", "sample", LOGPROBS)):
                values[row["group"], row["sample"]] += [value for value in row[LOGPROBS] or () if value is not None]
    return {key: fmean(found) for key, found in values.items() if found}


def _points(
    whole: Mapping[str, Sequence[EpisodeRecord]], most: int, select: Selector, seed: int
) -> dict[int, Estimate]:
    return {
        k: interval_of_shares(
            {task: fmean(map(select, _subsets(samples, k, f"{seed}/{task}/{k}"))) for task, samples in whole.items()}
        )
        for k in range(1, most + 1)
    }


def _subsets(samples: Sequence[EpisodeRecord], k: int, seed: str) -> list[tuple[EpisodeRecord, ...]]:
    if comb(len(samples), k) <= MOST_SUBSETS:
        return list(combinations(samples, k))
    draws = random.Random(seed)
    return [tuple(draws.sample(samples, k)) for _ in range(MOST_SUBSETS)]


def _best(samples: Sequence[EpisodeRecord], values: Sequence[float]) -> float:
    highest = max(values)
    return fmean(float(one["success"]) for one, value in zip(samples, values, strict=True) if value == highest)


def _mean_success(samples: Sequence[EpisodeRecord]) -> float:
    return fmean(float(one["success"]) for one in samples)


def _last_action(record: EpisodeRecord) -> str | None:
    actions = [turn["action"] for turn in record["turns"] if turn["action"] is not None]
    return " ".join(actions[-1].split()).lower() if actions else None
