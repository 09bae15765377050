"""What sessions take and leave behind: memory while they are open, and files, threads and processes afterwards."""

import asyncio
import gc
import threading
import time
from dataclasses import dataclass
from functools import partial

import psutil

from verl_agent.envs.base import EnvAdapter
from verl_agent.envs.hosts.host import CallLimits
from verl_agent.envs.hosts.memory import MemoryGauge
from verl_agent.envs.hosts.process import start_process
from verl_agent.envs.hosts.slot import PoolLimits
from verl_agent.envs.testing.harness import Harness
from verl_agent.envs.testing.violation import ContractViolation
from verl_agent.errors import AgentError
from verl_agent.types import TaskItem

OPEN = 12
"""Sessions that are open at once when they are measured."""
TURNS = 6
SETTLE_S = 5.0
"""Seconds that threads, files and processes of closed sessions have to go."""
QUIET_S = 0.5
"""Seconds without a change after which nothing is expected to go any more."""


@dataclass(frozen=True, slots=True)
class Holdings:
    """What this process holds.

    Attributes:
        files: open file handles.
        threads: running.
        processes: that it started, and those that they started.
    """

    files: int
    threads: int
    processes: int

    @classmethod
    def now(cls) -> "Holdings":
        """What is held now."""
        gc.collect()
        mine = psutil.Process()
        return cls(mine.num_fds(), threading.active_count(), len(mine.children(recursive=True)))

    def within(self, other: "Holdings") -> bool:
        """Whether it is no more than another one, kind by kind."""
        return self.files <= other.files and self.threads <= other.threads and self.processes <= other.processes


def check_leftovers(trial: Harness) -> None:
    """Closed sessions leave nothing open."""
    count = min(OPEN, trial.env.hosting.sessions)
    items = [trial.items[place % len(trial.items)] for place in range(count)]
    scripts = [trial.script(item)[:TURNS] for item in items]
    trial.play(items[0], scripts[0])
    before = settled(None)
    sessions: dict[int, EnvAdapter] = {}

    async def begin(place: int, item: TaskItem) -> None:
        sessions[place] = trial.session()
        await trial.reset(sessions[place], item)
        for action in scripts[place]:
            if (await trial.step(sessions[place], action)).terminated:
                return

    async def end(place: int) -> None:
        await trial.close(sessions.pop(place))

    lanes = trial.lanes(count)
    trial.run([partial(begin, place, item) for place, item in enumerate(items)], lanes)
    trial.run([partial(end, place) for place in range(count)], lanes)
    trial.end(lanes)
    after = settled(before)
    for what in ("files", "threads", "processes"):
        left = getattr(after, what) - getattr(before, what)
        if left >= max(2, count // 2):
            raise ContractViolation(
                f"{count} sessions", f"left {left} {what} open", "Release in close() what reset() took."
            )


def check_memory(trial: Harness) -> str:
    """A full host stays within its memory.

    Returns:
        What a host and a session take, in words.
    """
    hosting = trial.env.hosting
    try:
        base, each = asyncio.run(measure(trial))
    except AgentError as error:
        raise ContractViolation("a host process", f"does not play: {error}", "See the check before.") from error
    full = base + each * hosting.sessions
    if full > hosting.memory_mb:
        fitting = max(1, int((hosting.memory_mb - base) * 0.8 / each)) if each and base < hosting.memory_mb else 1
        raise ContractViolation(
            f"{hosting.sessions} sessions",
            f"would take about {full:,.0f} MiB in a host, more than hosting.memory_mb={hosting.memory_mb}",
            f"A session takes about {each:.1f} MiB, a host without any {base:.0f}: share what can be shared, or state "
            f"what a host may hold, such as `hosting = Hosting(sessions={fitting})`.",
        )
    return f"{base:.0f} MiB, and about {each:.2f} for each of at most {hosting.sessions} sessions"


async def measure(trial: Harness) -> tuple[float, float]:
    """MiB of a host process that has played an episode, and of each further session that is open in it."""
    env, count = trial.env, min(OPEN, trial.env.hosting.sessions)
    limits = CallLimits(trial.timeout_s)
    link = await start_process(env, env.hosting, limits, PoolLimits().frozen_s)
    try:
        gauge = MemoryGauge(every_s=0.0, pid=link.pid)

        async def begin(number: int) -> None:
            item = trial.items[number % len(trial.items)]
            await link.call("open", number)
            await link.call("reset", number, item)
            for action in trial.script(item)[:TURNS]:
                if (await link.call("step", number, action)).terminated:
                    return

        await begin(0)
        base = gauge()
        await asyncio.gather(*(begin(number) for number in range(1, count + 1)))
        return base, max(0.0, gauge() - base) / count
    finally:
        await link.end("it was measured.")


def settled(goal: Holdings | None) -> Holdings:
    """What is held once it changes no more, or is back at `goal`; after a while in any case."""
    now, since = Holdings.now(), time.monotonic()
    until = since + SETTLE_S
    while time.monotonic() < until:
        if goal is not None and now.within(goal):
            return now
        if goal is None and time.monotonic() - since > QUIET_S:
            return now
        time.sleep(0.05)
        last, now = now, Holdings.now()
        since = since if now == last else time.monotonic()
    return now
