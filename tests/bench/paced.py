"""Random episode plans, and an engine and an environment that take exactly the planned time.

All random values are in the plans, so every loop that plays a plan has the same turns and latencies.
"""

import asyncio
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from typing_extensions import override

from verl_agent.envs.base import EnvAdapter
from verl_agent.rollout.episode import Policy
from verl_agent.types import Message, Reply, StepResult, TaskItem

MIN_TURNS, MAX_TURNS = 3, 10
MIN_TOKENS, MAX_TOKENS = 20, 60
TOKEN_S = 0.005
ENV_MEDIAN_S = 0.5
ENV_SIGMA = 1.0


@dataclass(frozen=True, slots=True)
class EpisodePlan:
    """Plan of one episode, which terminates after its last turn.

    Attributes:
        id: stable name.
        reset_s: duration of the reset in seconds.
        tokens: length of each reply in tokens.
        step_s: duration of each step in seconds, one for each reply.
        token_s: seconds that the engine needs for a token.
        reward: reward of the last step.
    """

    id: str
    reset_s: float
    tokens: tuple[int, ...]
    step_s: tuple[float, ...]
    token_s: float
    reward: float

    @property
    def item(self) -> TaskItem:
        """The task that `PacedEnv` plays."""
        return TaskItem("paced", self.id, {"reset_s": self.reset_s, "step_s": self.step_s, "reward": self.reward})

    @property
    def alone_s(self) -> float:
        """Sum of all latencies in seconds."""
        return self.reset_s + sum(self.tokens) * self.token_s + sum(self.step_s)


def sample_plans(seed: int, episodes: int, speed: float) -> list[EpisodePlan]:
    """Sample plans of 3 to 10 turns with 20 to 60 tokens each and lognormal environment latencies.

    Args:
        seed: random seed. `speed` changes only the latencies of a seed's plans.
        episodes: number of plans.
        speed: divisor of all latencies, > 0.
    """
    random = Random(seed)

    def env_s() -> float:
        return random.lognormvariate(math.log(ENV_MEDIAN_S), ENV_SIGMA) / speed

    plans = []
    for number in range(episodes):
        turns = random.randint(MIN_TURNS, MAX_TURNS)
        plans.append(
            EpisodePlan(
                id=f"{seed}-{number}",
                reset_s=env_s(),
                tokens=tuple(random.randint(MIN_TOKENS, MAX_TOKENS) for _ in range(turns)),
                step_s=tuple(env_s() for _ in range(turns)),
                token_s=TOKEN_S / speed,
                reward=random.choice((0.0, 1.0)),
            )
        )
    return plans


def instant(episodes: int, turns: int) -> list[EpisodePlan]:
    """Return plans without latency, whose duration is the loop's own time."""
    return [EpisodePlan(str(number), 0.0, (1,) * turns, (0.0,) * turns, 0.0, 1.0) for number in range(episodes)]


async def generate(tokens: Sequence[int], token_s: float) -> list[Reply]:
    """Return replies of the given lengths after the time that the longest one takes.

    The time for a token does not depend on the batch size, so neither loop profits from its batch size.
    """
    await asyncio.sleep(max(tokens) * token_s)
    return [Reply("word " * count, tokens=count) for count in tokens]


class PacedPolicy(Policy):
    """Policy that returns the replies of a plan, one request for each."""

    def __init__(self, plan: EpisodePlan) -> None:
        self._tokens, self._token_s = iter(plan.tokens), plan.token_s

    @override
    async def reply(self, messages: Sequence[Message]) -> Reply:
        return (await generate([next(self._tokens)], self._token_s))[0]


class PacedEnv(EnvAdapter):
    """Environment that blocks its thread for the durations in its item, as the client of an environment server does."""

    def tasks(self, split: str) -> Sequence[TaskItem]:
        """Return no items; the benchmark creates them from plans."""
        return []

    @override
    async def reset(self, item: TaskItem) -> list[Message]:
        self._step_s: Sequence[float] = item.data["step_s"]
        self._reward: float = item.data["reward"]
        self._steps = 0
        time.sleep(item.data["reset_s"])
        return [{"role": "user", "content": f"Begin {item.id}."}]

    @override
    async def step(self, action: str) -> StepResult:
        time.sleep(self._step_s[self._steps])
        self._steps += 1
        done = self._steps == len(self._step_s)
        observation = f"step {self._steps}: {len(action.split())} words"
        return StepResult(observation, reward=self._reward if done else 0.0, terminated=done)
