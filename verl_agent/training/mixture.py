"""In which order the tasks of several environments are played, as a pure function of the position.

A run that is stopped and goes on reads the same tasks, since the loader saves nothing but its position.
"""

import random
from collections.abc import Mapping, Sequence


class MixtureOrder:
    """An endless sequence of tasks, drawn from parts by weight.

    Every prefix, so every batch too, holds the parts in proportion to their weights, up to rounding. A part's tasks
    come in shuffled rounds: each once, before any comes again.

    Args:
        sizes: number of tasks of each part, >= 1, by label.
        weights: of each part, > 0.
        seed: of the shuffling.
    """

    def __init__(self, sizes: Mapping[str, int], weights: Sequence[float], seed: int) -> None:
        self._sizes, self._seed = dict(sizes), seed
        self._labels = list(sizes)
        self._shares = [weight / sum(weights) for weight in weights]
        self._drawn = [0] * len(self._labels)
        self._places: list[tuple[int, int]] = []
        self._rounds: dict[tuple[str, int], list[int]] = {}

    def at(self, position: int) -> tuple[str, int]:
        """Label of the part and number of its task at a position, counted from 0."""
        while len(self._places) <= position:
            self._extend()
        part, draw = self._places[position]
        label = self._labels[part]
        turn, place = divmod(draw, self._sizes[label])
        return label, self._round(label, turn)[place]

    def _extend(self) -> None:
        length = len(self._places) + 1
        owed = [share * length - drawn for share, drawn in zip(self._shares, self._drawn, strict=True)]
        part = max(range(len(owed)), key=owed.__getitem__)
        self._places.append((part, self._drawn[part]))
        self._drawn[part] += 1

    def _round(self, label: str, number: int) -> list[int]:
        if (label, number) not in self._rounds:
            order = list(range(self._sizes[label]))
            random.Random(f"{self._seed}:{label}:{number}").shuffle(order)
            self._rounds[label, number] = order
        return self._rounds[label, number]
