"""Two loops that play the same episodes: asynchronously, or in lock-step."""

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
    """Episodes in the order of their plans, and their end times.

    Attributes:
        episodes: episodes that were played.
        done_s: seconds from the common start to the end of each episode.
    """

    episodes: list[Episode] = field(default_factory=list)
    done_s: list[float] = field(default_factory=list)

    @property
    def makespan_s(self) -> float:
        """Seconds until the end of the last episode."""
        return max(self.done_s)


NewEnv = Callable[[], EnvAdapter]
OpenEnvs = Callable[[int], AbstractAsyncContextManager[NewEnv]]
"""Context that returns a factory of sessions; its argument is the number of concurrent sessions."""


@asynccontextmanager
async def pooled(pool: HostPool, sessions: int) -> AsyncIterator[NewEnv]:
    """Return a factory of sessions of a pool whose hosts are running, as from the second batch of a run on."""
    try:
        for session in await asyncio.gather(*(pool.open() for _ in range(sessions))):
            await pool.close(session)
        yield lambda: PooledEnv(PacedEnv(), pool)
    finally:
        await pool.shutdown()


def in_hosts(sessions: int) -> AbstractAsyncContextManager[NewEnv]:
    """Run sessions as the product does: in host processes, with one thread for each session."""
    return pooled(process_pool(PacedEnv(), CallLimits(600.0), PoolLimits()), sessions)


def in_threads(sessions: int) -> AbstractAsyncContextManager[NewEnv]:
    """Run sessions in threads of this process."""
    return pooled(inline_pool(PacedEnv(), CallLimits(600.0), PoolLimits()), sessions)


@asynccontextmanager
async def in_loop(sessions: int) -> AsyncIterator[NewEnv]:
    """Call adapters in the thread of the event loop."""
    yield PacedEnv


async def play_asynchronously(
    plans: Sequence[EpisodePlan], limits: EpisodeLimits, open_envs: OpenEnvs = in_hosts
) -> Played:
    """Play with the product's loop: one asyncio task for each episode, all started at the same time."""
    async with open_envs(len(plans)) as new_env:
        return await play_with(new_env, plans, limits)


async def play_with(new_env: NewEnv, plans: Sequence[EpisodePlan], limits: EpisodeLimits) -> Played:
    """Play with the product's loop and sessions from a factory."""
    start = time.monotonic()

    async def one(plan: EpisodePlan) -> tuple[Episode, float]:
        tries = await play_until_valid(plan.item, new_env, plain, lambda: PacedPolicy(plan), limits)
        return tries[-1], time.monotonic() - start

    ended = await asyncio.gather(*map(one, plans))
    return Played([episode for episode, _ in ended], [done_s for _, done_s in ended])


async def play_in_lock_step(plans: Sequence[EpisodePlan], limits: EpisodeLimits) -> Played:
    """Play in lock-step, as AgentGym-RL does: generate all replies, carry out all steps, and begin the next round.

    This loop is faster than AgentGym-RL, which creates and resets its environments one after another. Here all resets
    run concurrently, as do all steps of a round. Sessions are the product's own, so the two loops differ only in their
    order. An episode ends at the barrier of its last round.
    """
    async with in_hosts(len(plans)) as new_env:
        return await _play_in_lock_step(plans, limits, new_env)


async def _play_in_lock_step(plans: Sequence[EpisodePlan], limits: EpisodeLimits, new_env: NewEnv) -> Played:
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
    requested = time.monotonic()
    replies = await generate([plan.tokens[number] for plan, _, _ in players], players[0][0].token_s)
    answered = time.monotonic()
    steps = await asyncio.gather(*(env.step(reply.text) for (_, _, env), reply in zip(players, replies, strict=True)))
    stepped = time.monotonic()
    for (_, episode, _), reply, step in zip(players, replies, steps, strict=True):
        episode.turns.append(Turn(reply, reply.text, step, answered - requested, stepped - answered))
        episode.messages.append({"role": "assistant", "content": reply.text})
        episode.messages.append({"role": "user", "content": step.observation})
        if step.terminated:
            episode.stop = StopReason.TERMINATED
