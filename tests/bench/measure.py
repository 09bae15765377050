"""Measurements of the rollout: both loops on the same episodes, and the product's loop on episodes without latency."""

import asyncio
import time
from dataclasses import dataclass
from statistics import fmean, median, quantiles

from tests.bench.loops import (
    OpenEnvs,
    Played,
    in_hosts,
    in_loop,
    in_threads,
    play_asynchronously,
    play_in_lock_step,
    play_with,
)
from tests.bench.paced import MAX_TURNS, instant, sample_plans
from verl_agent.rollout.episode import EpisodeLimits

LIMITS = EpisodeLimits(MAX_TURNS, timeout_s=600.0)
OVERHEAD_REPEATS = 5


@dataclass(frozen=True, slots=True)
class EpisodeTimes:
    """End times of the episodes of one run, in seconds from their common start."""

    mean: float
    p50: float
    p90: float
    max: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """Episodes of one seed, played by both loops. Seconds are as measured, with latencies divided by the speed.

    Attributes:
        seed: random seed of the episodes.
        turns: number of turns of all episodes.
        ours: times of the product's loop.
        lock_step: times of the loop in lock-step.
        longest_drawn_s: sum of the latencies of the longest episode.
        longest_alone_s: duration of the same episode, played alone by the product's loop.
        speedup: makespan in lock-step divided by that of the product's loop.
        over_longest: makespan of the product's loop divided by `longest_drawn_s`.
    """

    seed: int
    turns: int
    ours: EpisodeTimes
    lock_step: EpisodeTimes
    longest_drawn_s: float
    longest_alone_s: float
    speedup: float
    over_longest: float


@dataclass(frozen=True, slots=True)
class Overhead:
    """Cost of a turn without any latency. It includes opening and closing the sessions, but not the start of hosts.

    Attributes:
        sessions: description of where the sessions run.
        wall_ms: milliseconds for each turn, median of the repeats.
        wall_ms_worst: milliseconds for each turn in the slowest repeat.
        cpu_ms: processor time of this process in milliseconds for each turn, median of the repeats.
    """

    sessions: str
    wall_ms: float
    wall_ms_worst: float
    cpu_ms: float


def compare(seed: int, episodes: int, speed: float) -> Comparison:
    """Play the same episodes with both loops, and the longest one alone."""
    plans = sample_plans(seed, episodes, speed)
    longest = max(plans, key=lambda plan: plan.alone_s)
    ours = asyncio.run(play_asynchronously(plans, LIMITS))
    lock_step = asyncio.run(play_in_lock_step(plans, LIMITS))
    alone = asyncio.run(play_asynchronously([longest], LIMITS))
    return Comparison(
        seed=seed,
        turns=sum(len(episode.turns) for episode in ours.episodes),
        ours=episode_times(ours),
        lock_step=episode_times(lock_step),
        longest_drawn_s=longest.alone_s,
        longest_alone_s=alone.makespan_s,
        speedup=lock_step.makespan_s / ours.makespan_s,
        over_longest=ours.makespan_s / longest.alone_s,
    )


def episode_times(played: Played) -> EpisodeTimes:
    """Return mean and percentiles of the end times of at least two episodes."""
    p90 = quantiles(played.done_s, n=10, method="inclusive")[-1]
    return EpisodeTimes(fmean(played.done_s), median(played.done_s), p90, played.makespan_s)


def overheads(episodes: int) -> list[Overhead]:
    """Measure the product's loop with sessions in host processes, in threads, and in the loop's own thread."""
    asyncio.run(play_asynchronously(instant(4, 2), LIMITS))  # the first run of a process includes imports
    return [
        _overhead("in host processes, a thread each", in_hosts, episodes),
        _overhead("in threads of this process", in_threads, episodes),
        _overhead("in the loop's own thread", in_loop, episodes),
    ]


def _overhead(sessions: str, open_envs: OpenEnvs, episodes: int) -> Overhead:
    plans = instant(episodes, MAX_TURNS)
    turns = episodes * MAX_TURNS
    wall_ms, cpu_ms = [], []

    async def repeat() -> None:
        async with open_envs(episodes) as new_env:
            for _ in range(OVERHEAD_REPEATS):
                cpu = time.process_time()
                played = await play_with(new_env, plans, LIMITS)
                cpu_ms.append((time.process_time() - cpu) * 1000 / turns)
                wall_ms.append(played.makespan_s * 1000 / turns)

    asyncio.run(repeat())
    return Overhead(sessions, median(wall_ms), max(wall_ms), median(cpu_ms))
