"""Coverage of the intervals of studies, and errors of their verdicts, by simulation.

Three tables: intervals of arms under successive stopping, intervals over few seeds, and verdicts of equality over arms.
`python -m tests.bench.study_coverage` takes some minutes. A smaller number of studies may be given as the argument.
"""

import sys
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from verl_agent.results.statistics import t_quantile
from verl_agent.study.inference import (
    ALPHA,
    ArmComparison,
    decided_pairs,
    equal_arms,
    hopeless,
    over_seeds,
    verdict,
)

STUDIES = 1000
BLOCK, BLOCKS = 5, 4
"""Seeds of a block, and blocks of a study."""
SPREAD = 0.5
"""Standard deviation of what the arms share in a seed; that of each run is 1."""
Draw = Callable[[tuple[int, ...]], NDArray[np.float64]]


def stopped(random: np.random.Generator, gap: float) -> tuple[bool, bool]:
    """Simulate a study of two arms with successive stopping.

    Returns:
        True if an arm was dropped before the last seed; and if the 95 % t interval of the difference covers the gap.
    """
    blocks, left, right = list[dict[str, list[float]]](), list[float](), list[float]()
    for _ in range(BLOCKS):
        shared = random.normal(size=BLOCK) * SPREAD
        block = {"first": shared + random.normal(size=BLOCK), "other": gap + shared + random.normal(size=BLOCK)}
        blocks.append({arm: values.tolist() for arm, values in block.items()})
        left, right = [*left, *blocks[-1]["first"]], [*right, *blocks[-1]["other"]]
        if hopeless(decided_pairs(blocks, BLOCKS, ALPHA)):
            break
    found = over_seeds(np.array(right) - np.array(left))
    return len(left) < BLOCK * BLOCKS, found.low <= gap <= found.high


def stopping_table(studies: int) -> Iterator[str]:
    """Yield the share of intervals that cover; the report shows those of arms that are dropped no more."""
    yield "| gap, in deviations of a run | dropped | before: of dropped arms cover | of others | after: wrong ones |"
    yield "|---|---|---|---|---|"
    random = np.random.default_rng(0)
    for gap in (-0.5, -1.0, -1.5):
        found = [stopped(random, gap) for _ in range(studies)]
        dropped, kept = ([covers for was, covers in found if was is drop] for drop in (True, False))
        shares = [f"{sum(part)} of {len(part)} ({np.mean(part):.0%})" for part in (dropped, kept)]
        wrong = sum(not covers for covers in kept) / studies
        yield f"| {gap} | {len(dropped) / studies:.0%} | {' | '.join(shares)} | {wrong:.1%} of all studies |"


def interquartile_means(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the interquartile means of the last dimension, as `interquartile_mean` does for one sample."""
    cut = values.shape[-1] // 4
    means: NDArray[np.float64] = np.sort(values, -1)[..., cut : values.shape[-1] - cut].mean(-1)
    return means


def few_seeds_table(studies: int) -> Iterator[str]:
    """Yield the share of 95 % intervals that cover: bootstrap of interquartile means, and t intervals of means."""
    random = np.random.default_rng(1)
    shapes: dict[str, Draw] = {
        "normal": lambda size: random.normal(size=size),
        "skewed (exponential)": lambda size: random.exponential(size=size),
        "two peaks (beta 0.5, 0.5)": lambda size: random.beta(0.5, 0.5, size=size),
    }
    yield "| seeds | " + " | ".join(f"{shape}: bootstrap, t" for shape in shapes) + " |\n" + "|---" * 4 + "|"
    truths = {name: draw((4_000_000,)) for name, draw in shapes.items()}
    for seeds in (3, 4, 5, 6, 8, 12, 16):
        cells = []
        for name, draw in shapes.items():
            middle, mean = interquartile_means(truths[name]), truths[name].mean()
            values = draw((studies, seeds))
            picks = random.integers(0, seeds, (studies, 1000, seeds))
            drawn = interquartile_means(np.take_along_axis(values[:, None].repeat(1000, 1), picks, 2))
            low, high = np.quantile(drawn, [ALPHA / 2, 1 - ALPHA / 2], axis=1)
            half = t_quantile(1 - ALPHA / 2, seeds - 1) * values.std(1, ddof=1) / np.sqrt(seeds)
            covered = ((low <= middle) & (middle <= high)).mean(), (abs(values.mean(1) - mean) <= half).mean()
            cells.append(f"{covered[0]:.0%}, {covered[1]:.0%}")
        yield f"| {seeds} | {' | '.join(cells)} |"


def equality_table(studies: int) -> Iterator[str]:
    """Yield the share of studies that call an arm equal though all lie at the margin, and one of equal arms found."""
    yield "| compared arms | before: any false `equal` | after | all arms without a difference: before | after |"
    yield "|---|---|---|---|---|"
    random, margin, seeds = np.random.default_rng(2), 0.05, 16
    for arms in (1, 2, 5):
        cells = []
        for gap in (margin, 0.0):
            before = after = 0
            for _ in range(studies):
                first = random.normal(0, 0.04, (1, seeds))
                found = {}
                for arm in range(arms):
                    other = gap + random.normal(0, 0.04, (1, seeds))
                    by_seed = (other - first)[0]
                    mean = over_seeds(by_seed)
                    found[str(arm)] = ArmComparison(mean, mean, 1.0, float(by_seed.std(ddof=1)))
                passed = equal_arms(found, margin)
                said = {arm: verdict(one.difference, 1.0, margin, equal=arm in passed) for arm, one in found.items()}
                alone = {arm: verdict(one.difference, 1.0, margin) for arm, one in found.items()}
                counts = [sum(one.startswith("equal") for one in names.values()) for names in (alone, said)]
                needed = 1 if gap else arms
                before, after = before + (counts[0] >= needed), after + (counts[1] >= needed)
            cells += [f"{before / studies:.1%}", f"{after / studies:.1%}"]
        yield f"| {arms} | {' | '.join(cells)} |"


if __name__ == "__main__":
    studies = int(sys.argv[1]) if len(sys.argv) > 1 else STUDIES
    for table in (stopping_table, few_seeds_table, equality_table):
        sys.stdout.write("\n".join(table(studies)) + "\n\n")
