"""Two ways to play the same episodes: each at its own pace, or all in rounds."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field

from tests.bench.paced import EpisodePlan, PacedEnv, PacedPolicy, generate
from tests.support.fakes import plain
from verl_agent.envs.base import EnvAdapter
from verl_agent.envs.hosts.host import CallLimits
from verl_agent.envs.hosts.local import inline_pool, process_pool
from verl_agent.envs.hosts.pool import HostPool
from verl_agent.envs.hosts.slot import PoolLimits
from verl_agent.envs.session import PooledEnv
from verl_agent.rollout.episode import EpisodeLimits, play_until_valid
from verl_agent.types import Episode, StopReason, Turn


@dataclass(slots=True)
class Played:
    """Episodes in the order of their plans, and when each was over.

    Attributes:
        episodes: what was played.
        done_s: seconds from the common start to the end of each episode.
    """

    episodes: list[Episode] = field(default_factory=list)
    done_s: list[float] = field(default_factory=list)

    @property
    def makespan_s(self) -> float:
        """Seconds until the last episode was over."""
        return max(self.done_s)


NewEnv = Callable[[], EnvAdapter]
Home = Callable[[int], AbstractAsyncContextManager[NewEnv]]
"""Makes sessions, told how many there will be at once."""


@asynccontextmanager
async def pooled(pool: HostPool, sessions: int) -> AsyncIterator[NewEnv]:
    """Sessions of a pool whose hosts have been started, as they are from a run's second batch on."""
    try:
        for session in await asyncio.gather(*(pool.open() for _ in range(sessions))):
            await pool.close(session)
        yield lambda: PooledEnv(PacedEnv(), pool)
    finally:
        await pool.shutdown()


def in_hosts(sessions: int) -> AbstractAsyncContextManager[NewEnv]:
    """Sessions as the product makes them: in host processes, a thread each."""
    return pooled(process_pool(PacedEnv(), CallLimits(600.0), PoolLimits()), sessions)


def in_threads(sessions: int) -> AbstractAsyncContextManager[NewEnv]:
    """The same without another process."""
    return pooled(inline_pool(PacedEnv(), CallLimits(600.0), PoolLimits()), sessions)


@asynccontextmanager
async def in_loop(sessions: int) -> AsyncIterator[NewEnv]:
    """Adapters that are called in the loop's own thread."""
    yield PacedEnv


async def play_apart(plans: Sequence[EpisodePlan], limits: EpisodeLimits, home: Home = in_hosts) -> Played:
    """Play with the product's loop: one task for each episode, all started at once."""
    async with home(len(plans)) as new_env:
        return await play_with(new_env, plans, limits)


async def play_with(new_env: NewEnv, plans: Sequence[EpisodePlan], limits: EpisodeLimits) -> Played:
    """The same with sessions that somebody else looks after."""
    start = time.monotonic()

    async def one(plan: EpisodePlan) -> tuple[Episode, float]:
        tries = await play_until_valid(plan.item, new_env, plain, lambda: PacedPolicy(plan), limits)
        return tries[-1], time.monotonic() - start

    ended = await asyncio.gather(*map(one, plans))
    return Played([episode for episode, _ in ended], [done_s for _, done_s in ended])


async def play_in_rounds(plans: Sequence[EpisodePlan], limits: EpisodeLimits) -> Played:
    """Play in lock-step, as AgentGym-RL does: generate for all, step all, wait for all, and again.

    Kinder than the reference, which creates and resets its environments one after another: here all
    resets run at the same time, as do all steps of a round. Sessions are the product's own, so that the
    two loops differ in nothing but their order. An episode is over at the barrier of its last round.
    """
    async with in_hosts(len(plans)) as new_env:
        return await _play_in_rounds(plans, limits, new_env)


async def _play_in_rounds(plans: Sequence[EpisodePlan], limits: EpisodeLimits, new_env: NewEnv) -> Played:
    start = time.monotonic()
    played = Played([Episode(plan.item, limits.max_turns) for plan in plans], [0.0] * len(plans))
    envs = [new_env() for _ in plans]
    prompts = await asyncio.gather(*(env.reset(plan.item) for env, plan in zip(envs, plans, strict=True)))
    for episode, prompt in zip(played.episodes, prompts, strict=True):
        episode.messages += prompt
    running = list(range(len(plans)))
    for number in range(limits.max_turns):
        await _round([(plans[i], played.episodes[i], envs[i]) for i in running], number)
        for i in running:
            played.done_s[i] = time.monotonic() - start
        running = [i for i in running if played.episodes[i].stop is not StopReason.TERMINATED]
        if not running:
            break
    for i in running:
        played.episodes[i].stop = StopReason.TURN_LIMIT
    await asyncio.gather(*(env.close() for env in envs))
    return played


async def _round(players: Sequence[tuple[EpisodePlan, Episode, EnvAdapter]], number: int) -> None:
    """Play turn `number` of all running episodes, with a barrier after the replies and one after the steps."""
    asked = time.monotonic()
    replies = await generate([plan.tokens[number] for plan, _, _ in players], players[0][0].token_s)
    answered = time.monotonic()
    steps = await asyncio.gather(*(env.step(reply.text) for (_, _, env), reply in zip(players, replies, strict=True)))
    stepped = time.monotonic()
    for (_, episode, _), reply, step in zip(players, replies, steps, strict=True):
        episode.turns.append(Turn(reply, reply.text, step, answered - asked, stepped - answered))
        episode.messages.append({"role": "assistant", "content": reply.text})
        episode.messages.append({"role": "user", "content": step.observation})
        if step.terminated:
            episode.stop = StopReason.TERMINATED
