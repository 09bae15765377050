"""Successive stopping of a comparison of several arms: AdaStop (Mathieu et al., arXiv 2306.10882)."""

from collections.abc import Mapping, Sequence
from itertools import combinations

import numpy as np

DRAWS = 10_000
"""Random permutations."""
Pair = tuple[str, str]


def decided_pairs(
    blocks: Sequence[Mapping[str, Sequence[float]]], most_blocks: int, alpha: float, seed: int = 0
) -> dict[Pair, str]:
    """Return the pairs of arms that differ, each with the arm of larger values, after some blocks of runs.

    The statistic of a pair after block k is |sum over the blocks of (sum of one arm - sum of the other)|. Its reference
    are permutations of the runs of the two arms within each block. Step-down over pairs: while the largest statistic
    of the undecided pairs reaches the threshold, its pair is decided and left out. The threshold of block k is the
    smallest one that permutations without an earlier decision reach with a share of at most `alpha / most_blocks`.
    Equal arms are then told apart anywhere with a probability of at most `alpha`.

    Args:
        blocks: values of each arm, by block; an arm that a block lacks was dropped before.
        most_blocks: blocks of the whole study.
        alpha: see above.
        seed: seed of the permutations.
    """
    pairs = list(combinations(blocks[0], 2)) if blocks else []
    observed, drawn = dict.fromkeys(pairs, 0.0), {pair: np.zeros(DRAWS) for pair in pairs}
    decided: dict[Pair, str] = {}
    random, alive = np.random.default_rng(seed), np.ones(DRAWS, dtype=bool)
    for block in blocks:
        pairs = [pair for pair in pairs if pair not in decided and block.keys() >= set(pair)]
        for pair in pairs:
            left, right = (np.asarray(block[arm], dtype=float) for arm in pair)
            pooled = np.concatenate([left, right])
            order = random.random((DRAWS, len(pooled))).argsort(1)
            drawn[pair] += 2 * pooled[order[:, : len(left)]].sum(1) - pooled.sum()
            observed[pair] += left.sum() - right.sum()
        while pairs:
            largest = np.max([np.abs(drawn[pair]) for pair in pairs], axis=0)
            reached = np.sort(np.where(alive, largest, -1.0))[::-1]
            allowed = int(alpha / most_blocks * (DRAWS + 1)) - 1  # the observed value counts as a draw
            threshold = float(reached[allowed]) + 1e-9 if allowed >= 0 else float("inf")
            widest = max(pairs, key=lambda pair: abs(observed[pair]))
            if abs(observed[widest]) < threshold:
                alive &= largest < threshold
                break
            decided[widest] = widest[0] if observed[widest] > 0 else widest[1]
            pairs.remove(widest)
    return decided


def hopeless(decided: Mapping[Pair, str], lower_is_better: bool = False) -> set[str]:
    """Return the arms that are worse than another one."""
    return {next(arm for arm in pair if (arm == larger) == lower_is_better) for pair, larger in decided.items()}
