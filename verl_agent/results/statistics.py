"""Intervals of rates and means, pass@k and paired comparisons, as pure functions.

Samples of the same task are not independent. Functions that take values by task first average within a task and then
treat tasks as independent draws of equal weight. This is the clustered standard error of Miller, "Adding Error Bars to
Evals" (arXiv 2411.00640).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist, fmean, median, stdev
from typing import Any

MIN_TASKS = 5
"""Tasks below which an estimate is marked as based on too few."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Mean with its confidence interval.

    Attributes:
        tasks: number of tasks, the independent draws.
        trials: effective number of independent trials behind a success rate; None for other estimates.
        too_few: True if there are fewer than `MIN_TASKS` tasks; the interval then says little.
    """

    mean: float
    low: float
    high: float
    tasks: int
    trials: float | None = None
    too_few: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "too_few", self.tasks < MIN_TASKS)

    def __str__(self) -> str:
        """Return mean and interval with three digits, for example `0.625 [0.491, 0.742]`."""
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"


def wilson_interval(successes: int, trials: int, confidence: float = 0.95) -> Estimate:
    """Return the share of successes in independent trials with the score interval of Wilson (1927).

    With p = successes / trials and the normal quantile z, the interval is
    `(p + z²/2n ± z · sqrt(p(1-p)/n + z²/4n²)) / (1 + z²/n)`. Unlike p ± z·sqrt(p(1-p)/n) it stays in 0 to 1 and
    keeps its coverage for few trials and for shares near 0 and 1 (Brown, Cai and DasGupta 2001).

    Raises:
        ValueError: `trials` < 1, or `successes` outside 0 to `trials`.
    """
    if not 0 <= successes <= trials or trials < 1:
        raise ValueError(f"successes must lie in 0 to trials and trials be >= 1, got {successes} of {trials}.")
    share = successes / trials
    return Estimate(share, *_wilson_limits(share, trials, confidence), trials, float(trials))


def clustered_wilson_interval(solved_by_task: Mapping[Any, Sequence[float]], confidence: float = 0.95) -> Estimate:
    """Return the share of successes, each task with the same weight, with Wilson's interval over tasks.

    Samples of a task are correlated, so n tasks with m samples each are worth fewer than n·m independent trials.
    Wilson's interval is computed with the effective number of trials `n / d`. Here `d = s² / (p(1-p))`, s² is the
    variance of the tasks' shares and p their mean. d is the design effect of Kish (1965) divided by m. It lies between
    1/m (independent samples) and 1 (the samples of a task agree). Franco, Little, Louis and Slud, "Comparative Study of
    Confidence Intervals for Proportions in Complex Sample Surveys" (2019), recommend Wilson's interval with an
    effective sample size.

    s² says little if few tasks hold the rarer outcome, and nothing if all samples agree. One task whose samples agree
    is therefore added to the k tasks with the rarer outcome: `d = (k · d + 1) / (k + 1)`. At a rate of 0.01, with 100
    tasks, 8 samples and a correlation of 0.6 this covers 97 % instead of 87 %. With one sample per task, or if the
    samples of each task agree, the result is `wilson_interval` over tasks.

    Args:
        solved_by_task: 0.0 or 1.0 for each sample of each task; at least one task and one sample each.

    Raises:
        ValueError: there is no task, or a task has no sample.
    """
    _check_samples(solved_by_task)
    shares = [fmean(samples) for samples in solved_by_task.values()]
    share = fmean(shares)
    rarer = sum(one != (share > 0.5) for one in shares)
    worth = 1.0
    if 0 < share < 1 and len(shares) > 1:
        spread = math.fsum((one - share) ** 2 for one in shares) / (len(shares) - 1)
        least = fmean(1 / len(samples) for samples in solved_by_task.values())
        worth = min(1.0, max(least, spread / (share * (1 - share))))
    trials = len(shares) * (rarer + 1) / (rarer * worth + 1)
    return Estimate(share, *_wilson_limits(share, trials, confidence), len(shares), trials)


def pass_at_k(samples: int, successes: int, k: int) -> float:
    """Return an unbiased estimate of the probability that at least one of `k` samples of a task succeeds.

    `1 - C(n-c, k) / C(n, k)` for c successes in n samples: Chen et al. 2021 (arXiv 2107.03374), equation 1.

    Raises:
        ValueError: `k` outside 1 to `samples`, or `successes` outside 0 to `samples`.
    """
    if not 1 <= k <= samples or not 0 <= successes <= samples:
        raise ValueError(f"pass@{k} of {successes} successes in {samples} samples is not defined.")
    return 1.0 - math.comb(samples - successes, k) / math.comb(samples, k)


def pass_hat_k(samples: int, successes: int, k: int) -> float:
    """Return an unbiased estimate of the probability that all of `k` samples of a task succeed, pass^k.

    `C(c, k) / C(n, k)` for c successes in n samples: Yao et al. 2024, tau-bench (arXiv 2406.12045), section 3.

    Raises:
        ValueError: `k` outside 1 to `samples`, or `successes` outside 0 to `samples`.
    """
    if not 1 <= k <= samples or not 0 <= successes <= samples:
        raise ValueError(f"pass^{k} of {successes} successes in {samples} samples is not defined.")
    return math.comb(successes, k) / math.comb(samples, k)


def macro_mean(rates: Sequence[Estimate], confidence: float = 0.95) -> Estimate:
    """Return the mean of several success rates, each with the same weight, with a stratified interval of Wilson.

    It is Wilson's interval of their mean with an effective number of trials (Franco, Little, Louis and Slud 2019). For
    C rates p_i of n_i trials this number is `q(1-q) / (sum(q_i(1-q_i) / n_i) / C²)`. Here `q_i = (n_i p_i + 1/2) /
    (n_i + 1)` is the mean under Jeffreys' prior (Brown, Cai and DasGupta 2001), and q the mean of the q_i. The prior
    gives rates of 0 and 1 a variance. A single rate has its own interval. The rates must be independent, as those of
    different categories are.

    In simulations with 1 to 27 categories of 3 to 100 tasks and rates of 0.01 to 0.99 this covers 92 % or more.
    Joining the intervals of the rates instead (Zou and Donner 2008) covers 86 % for 27 rates of 0.05.

    Args:
        rates: results of `wilson_interval` or `clustered_wilson_interval`, at least one.

    Raises:
        ValueError: an estimate is not a success rate.
    """
    trials = [one.trials for one in rates if one.trials is not None]
    if not rates or len(trials) < len(rates):
        raise ValueError(f"a macro mean needs success rates with their trials, got {list(map(str, rates))}.")
    smoothed = [(n * one.mean + 0.5) / (n + 1) for n, one in zip(trials, rates, strict=True)]
    variance = math.fsum(q * (1 - q) / n for n, q in zip(trials, smoothed, strict=True)) / len(rates) ** 2
    effective = fmean(smoothed) * (1 - fmean(smoothed)) / variance
    mean = fmean(one.mean for one in rates)
    limits = _wilson_limits(mean, effective, confidence)
    return Estimate(mean, *limits, sum(one.tasks for one in rates), effective)


def mean_over_tasks(
    values_by_task: Mapping[Any, Sequence[float]],
    confidence: float = 0.95,
    least: float = -math.inf,
    most: float = math.inf,
) -> Estimate:
    """Return the mean over tasks of the mean of each task's samples, with a t interval over tasks.

    For n tasks with means m_i: `mean ± t(n-1) · s / sqrt(n)`, where s is the standard deviation of the m_i. For 20
    tasks of which 10 % earn a part, this covers 76 %. If the range of values is known, the interval is therefore at
    least that over two more tasks, `mean ± c`, as in `paired_difference`; d is the difference to the median. So tasks
    that agree have an interval with a width. For samples of 0 or 1 use `clustered_wilson_interval`.

    Args:
        least: smallest possible value; the interval is clipped to it.
        most: largest possible value; the interval is clipped to it.

    Raises:
        ValueError: there is no task, or a task has no sample.
    """
    _check_samples(values_by_task)
    means = [fmean(values) for values in values_by_task.values()]
    plain = _t_interval(means, confidence)
    if not math.isfinite(most - least):
        return plain
    pair = _root_mean_square([one - median(means) for one in means], most - least)
    return _clipped(_wider(plain, _t_interval([*means, plain.mean + pair, plain.mean - pair], confidence)), least, most)


def mean_return(
    returns_by_task: Mapping[Any, Sequence[float]],
    success_reward: float = 1.0,
    baseline_by_task: Mapping[Any, Sequence[float]] | None = None,
) -> Estimate:
    """Return the mean return over tasks, or its difference to a baseline, paired by task, with a 95 % interval.

    Returns that are all 0 or `success_reward`, that of a solved task, are a rate and have its interval. Else the
    smallest range that holds all of them, 0 and `success_reward` counts as possible.
    """
    sides = (returns_by_task, baseline_by_task or {})
    known = {0.0, success_reward, *(one for side in sides for values in side.values() for one in values)}
    if baseline_by_task is not None:
        return paired_difference(returns_by_task, baseline_by_task, scale=max(known) - min(known))
    if success_reward > 0 and known == {0.0, success_reward}:
        solved = {task: [float(one > 0) for one in values] for task, values in returns_by_task.items()}
        rate = clustered_wilson_interval(solved)
        return Estimate(success_reward * rate.mean, success_reward * rate.low, success_reward * rate.high, rate.tasks)
    return mean_over_tasks(returns_by_task, least=min(known), most=max(known))


def return_margins(played: Iterable[tuple[str, str, float]]) -> dict[str, float]:
    """Return the metrics `episode/reward_margin` and `env/<label>/reward_margin`, without those of one task.

    Args:
        played: label of the environment ("" for none), task and return of each episode.
    """
    earned: dict[str, dict[tuple[str, str], list[float]]] = {}
    for label, task, value in played:
        for part in {"episode", f"env/{label}" if label else "episode"}:
            earned.setdefault(part, {}).setdefault((label, task), []).append(value)
    found = {part: mean_return(by_task) for part, by_task in earned.items() if len(by_task) > 1}
    return {f"{part}/reward_margin": (one.high - one.low) / 2 for part, one in found.items()}


def paired_difference(
    values_by_task: Mapping[Any, Sequence[float]],
    baseline_by_task: Mapping[Any, Sequence[float]],
    confidence: float = 0.95,
    scale: float | None = None,
) -> Estimate:
    """Return the difference to a baseline of shares or returns, paired by task, with an interval over tasks.

    Pairing removes the difficulty of each task, so that smaller differences show than by comparing two intervals
    (Miller, arXiv 2411.00640, section 4). The interval is a t interval over the differences of n tasks and two more,
    `+c` and `-c`. With one sample per task and side, c = 1. This is the adjusted interval of Bonett and Price (2012),
    which Fagerland, Lydersen and Laake (2014) recommend among others. A t interval without the two covers too seldom
    if few tasks differ: 85 % for 80 tasks of which 6 % are gained and none is lost.

    With more samples the differences d are smaller, and so is c: `c² = (sum(d²) + 1) / (k + 1)` over the k tasks that
    differ. This is their mean square with one more task, which differs wholly. The two sides may have different
    numbers of samples. tests/unit/results/test_coverage.py measures the coverage.

    For returns, `scale` is the largest difference of two, in place of the 1. The interval is at least the t interval.

    Raises:
        ValueError: the sides have different tasks, or a task has no sample.
    """
    if values_by_task.keys() != baseline_by_task.keys():
        unpaired = sorted(values_by_task.keys() ^ baseline_by_task.keys())
        raise ValueError(f"Both sides must have the same tasks; only one has {len(unpaired)}, such as {unpaired[:3]}.")
    if not values_by_task or not all([*values_by_task.values(), *baseline_by_task.values()]):
        raise ValueError("Every task needs a sample on both sides.")
    differences = [fmean(values) - fmean(baseline_by_task[task]) for task, values in values_by_task.items()]
    width = 1.0 if scale is None else scale
    pair, plain = _root_mean_square(differences, width), _t_interval(differences, confidence)
    adjusted = _t_interval([*differences, pair, -pair], confidence)
    found = Estimate(plain.mean, adjusted.low, adjusted.high, plain.tasks) if scale is None else _wider(plain, adjusted)
    return _clipped(found, -width, width)


def t_quantile(probability: float, degrees: int) -> float:
    """Return a quantile of Student's t distribution.

    Closed form for 1 and 2 degrees of freedom; for more, the expansion of Abramowitz and Stegun 26.7.5 in powers of
    1 / degrees. The error is at most 0.2 % between 0.025 and 0.975, and 0.8 % between 0.005 and 0.995.
    """
    if degrees == 1:
        return math.tan(math.pi * (probability - 0.5))
    if degrees == 2:
        return (2 * probability - 1) / math.sqrt(2 * probability * (1 - probability))
    x = NormalDist().inv_cdf(probability)
    terms = (
        (x**3 + x) / 4,
        (5 * x**5 + 16 * x**3 + 3 * x) / 96,
        (3 * x**7 + 19 * x**5 + 17 * x**3 - 15 * x) / 384,
        (79 * x**9 + 776 * x**7 + 1482 * x**5 - 1920 * x**3 - 945 * x) / 92160,
    )
    return x + math.fsum(term / math.pow(degrees, power) for power, term in enumerate(terms, start=1))


def _check_samples(values_by_task: Mapping[Any, Sequence[float]]) -> None:
    empty = [task for task, values in values_by_task.items() if not values]
    if not values_by_task or empty:
        raise ValueError(f"Every task needs a sample; {len(values_by_task)} tasks, without samples: {empty[:3]}.")


def _wilson_limits(share: float, trials: float, confidence: float) -> tuple[float, float]:
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    scale = 1 + z * z / trials
    centre = (share + z * z / (2 * trials)) / scale
    half = z / scale * math.sqrt(share * (1 - share) / trials + (z / (2 * trials)) ** 2)
    return max(0.0, centre - half), min(1.0, centre + half)


def _t_interval(draws: Sequence[float], confidence: float) -> Estimate:
    mean, half = fmean(draws), 0.0
    if len(draws) > 1:
        half = t_quantile((1 + confidence) / 2, len(draws) - 1) * stdev(draws) / math.sqrt(len(draws))
    return Estimate(mean, mean - half, mean + half, len(draws))


def _root_mean_square(differences: Sequence[float], scale: float) -> float:
    """Return the root mean square of the differences that are not 0 and of one more, which is `scale`."""
    differing = sum(abs(one) > 1e-9 * scale for one in differences)
    return math.hypot(scale, *differences) / math.sqrt(differing + 1)


def _clipped(estimate: Estimate, least: float, most: float) -> Estimate:
    return Estimate(estimate.mean, max(least, estimate.low), min(most, estimate.high), estimate.tasks)


def _wider(plain: Estimate, adjusted: Estimate) -> Estimate:
    return Estimate(plain.mean, min(plain.low, adjusted.low), max(plain.high, adjusted.high), plain.tasks)
