"""Rows of tokens as a tree, in which a beginning that rows share exists once.

Episodes of a task share their prompt, and often their first turns. A causal model computes the same for all of these.

Shape suffixes: T tokens of all rows one after another, U tokens of the tree, L tokens of a row.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True)
class Branch:
    """Tokens that a row adds to the tree, next to each other in it.

    Attributes:
        start: index of the first of them in the tree.
        end: index behind the last of them.
        ancestors: tokens of the tree in front of them, int64.
    """

    start: int
    end: int
    ancestors: Tensor

    @property
    def mask(self) -> Tensor:
        """Return what attention adds to the scores, float32 `(end - start, ancestors + end - start)`."""
        own, before = self.end - self.start, len(self.ancestors)
        return torch.full((own, before + own), -torch.inf).triu_(before + 1)


@dataclass(frozen=True)
class TokenTree:
    """Tree of the tokens of some rows.

    Attributes:
        ids_U: tokens, int64.
        depths_U: position of each token in its rows, int64.
        places_T: index in the tree of each token of each row, int64.
        branches: parts of the tree, one for each row that adds tokens.
    """

    ids_U: Tensor
    depths_U: Tensor
    places_T: Tensor
    branches: tuple[Branch, ...]

    @classmethod
    def of(cls, rows: Sequence[Tensor]) -> "TokenTree":
        """Return the tree of rows of tokens, int64 `(L,)` each."""
        known: list[NDArray[np.int64]] = []
        places: list[NDArray[np.int64]] = []
        branches: list[Branch] = []
        added: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
        size = 0
        for row in [one.numpy() for one in rows]:
            parent, shared = closest(row, known)
            before = places[parent][:shared] if places else np.arange(0)
            end = size + len(row) - shared
            places.append(np.concatenate([before, np.arange(size, end)]))
            known.append(row)
            if end > size:
                branches.append(Branch(size, end, torch.from_numpy(before)))
                added.append((row[shared:], np.arange(shared, len(row))))
            size = end
        ids, depths = (torch.from_numpy(np.concatenate(parts)) for parts in zip(*added, strict=True))
        return cls(ids, depths, torch.from_numpy(np.concatenate(places)), tuple(branches))


def closest(row: NDArray[np.int64], others: Sequence[NDArray[np.int64]]) -> tuple[int, int]:
    """Return the row of `others` that shares most tokens with the beginning of `row`, and their number."""
    shared = [_shared(row, other) for other in others] or [0]
    best = max(range(len(shared)), key=shared.__getitem__)
    return best, shared[best]


def pack(rows: Sequence[Sequence[Tensor]], budget: int) -> list[list[int]]:
    """Return micro-batches of units of rows, each as indices; neighbours in alphabetical order share most.

    Args:
        rows: units of rows that stay together, each row int64 `(L,)`.
        budget: tokens of the tree of a micro-batch; a unit with more of them has one of its own.
    """
    units = [[row.numpy() for row in unit] for unit in rows]
    packs: list[tuple[int, list[int]]] = []
    known: list[NDArray[np.int64]] = []
    for index in sorted(range(len(units)), key=lambda one: units[one][0].tolist()):
        together, count = list(known), 0
        for row in units[index]:
            count += len(row) - closest(row, together)[1]
            together.append(row)
        if packs and packs[-1][0] + count <= budget:
            packs[-1] = (packs[-1][0] + count, [*packs[-1][1], index])
            known = together
        else:
            known = units[index]
            count = sum(len(row) - closest(row, known[:place])[1] for place, row in enumerate(known))
            packs.append((count, [index]))
    return [indices for _, indices in sorted(packs, key=lambda one: -one[0])]


def _shared(left: NDArray[np.int64], right: NDArray[np.int64]) -> int:
    size = min(len(left), len(right))
    differs = left[:size] != right[:size]
    return int(differs.argmax()) if differs.any() else size
