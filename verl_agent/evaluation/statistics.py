"""How sure a measured rate or mean is: intervals, pass@k and paired comparisons, as pure functions.

Several samples of one task are not independent. Everything that takes them by item averages inside
the item first and treats items as the independent draws, the clustered error of Miller, "Adding
Error Bars to Evals" (arXiv 2411.00640), with each item weighing the same.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, stdev


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean and its confidence interval.

    Attributes:
        mean: the point estimate.
        low: lower end. Where `mean_over_items` sees no spread, as in a single item, both ends are the mean.
        high: upper end.
        items: number of independent draws behind it.
    """

    mean: float
    low: float
    high: float
    items: int

    def __str__(self) -> str:
        """Mean and interval in three digits, such as `0.625 [0.491, 0.742]`."""
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"


def wilson_interval(successes: int, trials: int, confidence: float = 0.95) -> Estimate:
    """Share of successes in independent trials, with the score interval of Wilson (1927).

    With p = successes / trials and the normal quantile z, the interval is
    `(p + z²/2n ± z · sqrt(p(1-p)/n + z²/4n²)) / (1 + z²/n)`. Unlike p ± z·sqrt(p(1-p)/n) it stays in
    0 to 1 and keeps its coverage for few trials and for shares near 0 and 1 (Brown, Cai and
    DasGupta 2001).

    Raises:
        ValueError: `trials` < 1, or `successes` outside 0 to `trials`.
    """
    if not 0 <= successes <= trials or trials < 1:
        raise ValueError(f"successes must lie in 0 to trials and trials be >= 1, got {successes} of {trials}.")
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    share = successes / trials
    scale = 1 + z * z / trials
    centre = (share + z * z / (2 * trials)) / scale
    half = z / scale * math.sqrt(share * (1 - share) / trials + (z / (2 * trials)) ** 2)
    return Estimate(share, max(0.0, centre - half), min(1.0, centre + half), trials)


def pass_at_k(samples: int, successes: int, k: int) -> float:
    """Probability that at least one of `k` samples of an item succeeds, estimated without bias.

    `1 - C(n-c, k) / C(n, k)` for c successes in n samples: Chen et al. 2021 (arXiv 2107.03374), equation 1.

    Raises:
        ValueError: `k` outside 1 to `samples`, or `successes` outside 0 to `samples`.
    """
    if not 1 <= k <= samples or not 0 <= successes <= samples:
        raise ValueError(f"pass@{k} of {successes} successes in {samples} samples is not defined.")
    return 1.0 - math.comb(samples - successes, k) / math.comb(samples, k)


def mean_over_items(values_by_item: Mapping[str, Sequence[float]], confidence: float = 0.95) -> Estimate:
    """Mean over items of the mean of each item's samples, with a t interval over items.

    For n items with means m_i: `mean ± t(n-1) · s / sqrt(n)`, s being the standard deviation of the m_i.
    For one sample of 0 or 1 per item prefer `wilson_interval`, which has a width even if all are equal.

    Args:
        values_by_item: samples of each item, at least one item and one sample each.
        confidence: coverage of the interval, in 0 to 1.

    Raises:
        ValueError: there is no item, or an item has no sample.
    """
    empty = [item for item, values in values_by_item.items() if not values]
    if not values_by_item or empty:
        raise ValueError(f"Every item needs a sample; {len(values_by_item)} items, without samples: {empty[:3]}.")
    return _t_interval([fmean(values) for values in values_by_item.values()], confidence)


def paired_difference(
    values_by_item: Mapping[str, Sequence[float]],
    baseline_by_item: Mapping[str, Sequence[float]],
    confidence: float = 0.95,
) -> Estimate:
    """How much better than a baseline in a share of 0 to 1, item by item, with an interval over items' differences.

    The interval is Student's; where all items differ alike, which tells nothing of their spread, it is that of
    `unanimous_interval`. Pairing takes out how hard each item is, so that smaller differences show than by comparing
    two intervals (Miller, arXiv 2411.00640, section 4). The two need not have equally many samples.

    Raises:
        ValueError: the two do not have the same items, or one has no sample.
    """
    if values_by_item.keys() != baseline_by_item.keys():
        unpaired = sorted(values_by_item.keys() ^ baseline_by_item.keys())
        raise ValueError(f"Both sides must have the same items; only one has {len(unpaired)}, such as {unpaired[:3]}.")
    if not values_by_item or not all([*values_by_item.values(), *baseline_by_item.values()]):
        raise ValueError("Every item needs a sample on both sides.")
    differences = [fmean(values) - fmean(baseline_by_item[item]) for item, values in values_by_item.items()]
    if max(differences) - min(differences) < 1e-9:
        return unanimous_interval(differences[0], len(differences), -1.0, 1.0, confidence)
    return _t_interval(differences, confidence)


def unanimous_interval(value: float, items: int, least: float, most: float, confidence: float = 0.95) -> Estimate:
    """The interval of a mean all of whose draws were equal, where a t interval would have no width.

    With the given confidence at most a share `p = 1 - (1 - confidence) ** (1 / items)` of further draws is another
    one (Clopper and Pearson 1934, for no event in `items` trials), and such a draw lies in `least` to `most`.

    Args:
        value: of every draw.
        items: number of draws, >= 1.
        least: smallest value that a draw can have.
        most: largest one.
        confidence: coverage of the interval, in 0 to 1.
    """
    other = 1 - (1 - confidence) ** (1 / items)
    return Estimate(value, value - other * (value - least), value + other * (most - value), items)


def t_quantile(probability: float, degrees: int) -> float:
    """Quantile of Student's t distribution, within 0.2 % between 0.025 and 0.975 and 0.8 % between 0.005 and 0.995.

    Closed form for 1 and 2 degrees of freedom, beyond them the expansion of Abramowitz and Stegun
    26.7.5 in powers of 1 / degrees.
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


def _t_interval(draws: Sequence[float], confidence: float) -> Estimate:
    mean = fmean(draws)
    if len(draws) == 1:
        return Estimate(mean, mean, mean, 1)
    half = t_quantile((1 + confidence) / 2, len(draws) - 1) * stdev(draws) / math.sqrt(len(draws))
    return Estimate(mean, mean - half, mean + half, len(draws))
