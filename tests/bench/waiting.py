"""Environment that waits like a web site: lognormal latencies, slow tasks, and tasks that take many turns."""

import asyncio
import math
import random
from collections.abc import Sequence

from typing_extensions import override

from verl_agent.envs.base import EnvAdapter
from verl_agent.types import Message, StepResult, TaskItem

TASKS = 4096
MIN_TURNS = 3
SOLVED = 0.06
DIFFICULTY = 0.7


class WaitingEnv(EnvAdapter):
    """Environment whose episodes end by chance, whatever the model writes.

    From the third turn on, each turn solves the task with a probability of its own. A task also has its own speed, as
    slow sites do. Both follow from its id.

    Args:
        median_s: median latency of a call in seconds; 0 for none.
        sigma: deviation of the logarithm of a latency.
        task_sigma: deviation of the logarithm of a task's mean latency.
        digits: further characters of an observation, one token each for the models of `tests.support.models`.
    """

    def __init__(self, median_s: float = 1.0, sigma: float = 1.0, task_sigma: float = 0.6, digits: int = 0) -> None:
        self._median_s, self._sigma, self._task_sigma = median_s, sigma, task_sigma
        self._observation = "Go on." + ("0123456789" * -(-digits // 10))[:digits]

    def tasks(self, split: str) -> Sequence[TaskItem]:
        """Return numbered tasks; those of other splits than `train` are few."""
        return [TaskItem("waiting", f"{split}-{number}") for number in range(TASKS if split == "train" else 4)]

    @override
    async def reset(self, item: TaskItem) -> list[Message]:
        own = random.Random(item.id)
        self._slowness = math.exp(own.gauss(0, self._task_sigma))
        self._solved = min(1.0, SOLVED * math.exp(DIFFICULTY * own.gauss(0, 1)))
        self._random, self._turns = random.Random(), 0
        await self._wait()
        return [{"role": "user", "content": "Begin."}]

    @override
    async def step(self, action: str) -> StepResult:
        await self._wait()
        self._turns += 1
        solved = self._turns >= MIN_TURNS and self._random.random() < self._solved
        return StepResult(self._observation, reward=float(solved), terminated=solved)

    async def _wait(self) -> None:
        if self._median_s:
            drawn = self._random.lognormvariate(math.log(self._median_s), self._sigma)
            await asyncio.sleep(drawn * self._slowness)
