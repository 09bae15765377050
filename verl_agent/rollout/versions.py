"""Versions of the weights that sampled tokens, as pairs of a version and a number of consecutive tokens.

A version is the training step after which the engine received the weights, 0 for the initial model.
"""

from collections.abc import Iterable, Sequence
from itertools import groupby


def expand(runs: Iterable[Sequence[int]]) -> list[int]:
    """Return the version of each token."""
    return [version for version, tokens in runs for _ in range(tokens)]


def contract(versions: Iterable[int]) -> list[list[int]]:
    """Return pairs of a version and a number of consecutive tokens that have it."""
    return [[version, len(list(tokens))] for version, tokens in groupby(versions)]
