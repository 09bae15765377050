"""Drawn episodes, and an engine and an environment that take exactly as long as was drawn.

All that chance decides is in the plans, so whoever plays a plan meets the same turns and latencies.
"""

import asyncio
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from verl_agent.envs.base import EnvAdapter
from verl_agent.types import Message, Reply, StepResult, TaskItem

MIN_TURNS, MAX_TURNS = 3, 10
MIN_TOKENS, MAX_TOKENS = 20, 60
TOKEN_S = 0.005
ENV_MEDIAN_S = 0.5
ENV_SIGMA = 1.0


@dataclass(frozen=True, slots=True)
class EpisodePlan:
    """One drawn episode, which terminates after its last turn.

    Attributes:
        id: stable name.
        reset_s: seconds that the environment takes to reset.
        tokens: length of each reply.
        step_s: seconds that the environment takes for each step, as many as `tokens`.
        token_s: seconds that the engine takes for a token.
        reward: what the last step earns.
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
        """Seconds that it takes if nothing is added to its latencies."""
        return self.reset_s + sum(self.tokens) * self.token_s + sum(self.step_s)


def draw(seed: int, episodes: int, speed: float) -> list[EpisodePlan]:
    """Draw episodes of 3 to 10 turns, of 20 to 60 tokens each, with lognormal environment latencies.

    Args:
        seed: same seed, same episodes; only their latencies depend on `speed`.
        episodes: how many.
        speed: what all latencies are divided by, > 0.
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
    """Episodes without any latency: what remains is the loop's own time."""
    return [EpisodePlan(str(number), 0.0, (1,) * turns, (0.0,) * turns, 0.0, 1.0) for number in range(episodes)]


async def generate(tokens: Sequence[int], token_s: float) -> list[Reply]:
    """Write a batch of replies of given lengths; it is back when the longest one is.

    A token takes as long in a large batch as in a small one, so neither loop gains by its batch size.
    """
    await asyncio.sleep(max(tokens) * token_s)
    return [Reply("word " * count, tokens=count) for count in tokens]


class PacedPolicy:
    """Writes the replies of a plan, each as a request of its own."""

    def __init__(self, plan: EpisodePlan) -> None:
        self._tokens, self._token_s = iter(plan.tokens), plan.token_s

    async def reply(self, messages: Sequence[Message]) -> Reply:
        """See `Policy.reply`."""
        return (await generate([next(self._tokens)], self._token_s))[0]


class PacedEnv(EnvAdapter):
    """Blocks its thread for the seconds that its item says, as the client of an environment server does."""

    def tasks(self, split: str) -> Sequence[TaskItem]:
        """None: items are drawn."""
        return []

    async def reset(self, item: TaskItem) -> list[Message]:
        """See `EnvAdapter.reset`."""
        self._step_s: Sequence[float] = item.data["step_s"]
        self._reward: float = item.data["reward"]
        self._steps = 0
        time.sleep(item.data["reset_s"])
        return [{"role": "user", "content": f"Begin {item.id}."}]

    async def step(self, action: str) -> StepResult:
        """See `EnvAdapter.step`."""
        time.sleep(self._step_s[self._steps])
        self._steps += 1
        done = self._steps == len(self._step_s)
        observation = f"step {self._steps}: {len(action.split())} words"
        return StepResult(observation, reward=self._reward if done else 0.0, terminated=done)
