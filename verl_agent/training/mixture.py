"""Order in which the tasks of a mixture are played, as a pure function of the position.

The data loader saves only its position, so a resumed run continues with the same tasks.
"""

import random
from collections.abc import Mapping, Sequence


class MixtureOrder:
    """Endless sequence of tasks from several environments, in proportion to their weights.

    Every prefix has the environments in proportion to their weights, up to rounding; so has every batch. The tasks of
    an environment come in shuffled rounds: each task once, before any task comes again.

    Args:
        sizes: number of tasks of each environment, by label, >= 1.
        weights: weight of each environment, > 0.
        seed: seed of the shuffled rounds.
    """

    def __init__(self, sizes: Mapping[str, int], weights: Sequence[float], seed: int) -> None:
        self._sizes, self._seed = dict(sizes), seed
        self._labels = list(sizes)
        self._shares = [weight / sum(weights) for weight in weights]
        self._counts = [0] * len(self._labels)
        self._positions: list[tuple[int, int]] = []
        self._rounds: dict[tuple[str, int], list[int]] = {}

    def at(self, position: int) -> tuple[str, int]:
        """Return label of the environment and number of the task at a position; numbers and positions start at 0."""
        while len(self._positions) <= position:
            self._extend()
        env, count = self._positions[position]
        label = self._labels[env]
        number, index = divmod(count, self._sizes[label])
        return label, self._round(label, number)[index]

    def _extend(self) -> None:
        """Give the next position to the environment that is furthest behind its share."""
        length = len(self._positions) + 1
        deficits = [share * length - count for share, count in zip(self._shares, self._counts, strict=True)]
        env = max(range(len(deficits)), key=deficits.__getitem__)
        self._positions.append((env, self._counts[env]))
        self._counts[env] += 1

    def _round(self, label: str, number: int) -> list[int]:
        """Return the tasks of an environment in the order of one round."""
        if (label, number) not in self._rounds:
            order = list(range(self._sizes[label]))
            random.Random(f"{self._seed}:{label}:{number}").shuffle(order)
            self._rounds[label, number] = order
        return self._rounds[label, number]
