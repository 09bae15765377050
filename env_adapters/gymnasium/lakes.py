"""FrozenLake on a map that the seed draws: `seeded/FrozenLake-v1`. Gymnasium's own seeds share one map."""

from itertools import count
from typing import Any
from zlib import crc32

import gymnasium
import numpy as np
from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv, generate_random_map
from typing_extensions import override

from env_adapters.seeded import FIRST_TEST_SEED

NAME = "seeded/FrozenLake-v1"
HELD_OUT = 2
"""One map of so many, about, is held out, by its content, so that no training task has it."""


class SeededLake(FrozenLakeEnv):
    """FrozenLake whose `reset(seed=...)` draws the map: `size` rows and columns, a path to the goal, and holes."""

    def __init__(self, render_mode: str | None = None, size: int = 4, is_slippery: bool = False) -> None:
        self._rest: dict[str, Any] = {"render_mode": render_mode, "is_slippery": is_slippery}
        self._size = size
        super().__init__(desc=draw_map(size, 0), **self._rest)

    @override
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        if seed is not None:
            super().__init__(desc=draw_map(self._size, seed), **self._rest)
        observation, info = super().reset(seed=seed, options=options)
        return int(observation), info


def draw_map(size: int, seed: int) -> list[str]:
    """Return the rows of the map of a seed; no seed of a training task has the map of a held-out one."""
    for attempt in count():
        (drawn,) = np.random.SeedSequence([seed, attempt]).generate_state(1)
        rows: list[str] = generate_random_map(size, seed=int(drawn))
        if (crc32("".join(rows).encode()) % HELD_OUT == 0) == (seed >= FIRST_TEST_SEED):
            return rows
    raise AssertionError("count() does not end")


if NAME not in gymnasium.registry:
    gymnasium.register(NAME, entry_point=f"{__name__}:{SeededLake.__name__}", max_episode_steps=100)
