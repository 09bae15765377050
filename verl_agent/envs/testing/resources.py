"""Checks of resources: memory of open sessions; files, threads and processes that closed sessions leave behind."""

import asyncio
import gc
import threading
import time
from dataclasses import dataclass
from functools import partial

import psutil

from verl_agent.envs.base import EnvAdapter
from verl_agent.envs.hosts.host import CallLimits
from verl_agent.envs.hosts.process import start_process
from verl_agent.envs.hosts.slot import PoolLimits
from verl_agent.envs.machine.memory import MemoryGauge
from verl_agent.envs.testing.harness import Harness
from verl_agent.envs.testing.violation import ContractViolation
from verl_agent.errors import AgentError
from verl_agent.types import TaskItem

SESSIONS = 12
"""Most sessions that are open at once while their resources are measured."""
TURNS = 6
"""Most actions of each of these sessions."""
SETTLE_S = 5.0
"""Seconds within which threads, files and processes of closed sessions must end."""
QUIET_S = 0.5
"""Seconds without a change after which the resources count as settled."""


@dataclass(frozen=True, slots=True)
class Resources:
    """Resources of this process."""

    files: int
    threads: int
    processes: int

    @classmethod
    def now(cls) -> "Resources":
        """Return the current resources."""
        gc.collect()
        process = psutil.Process()
        return cls(process.num_fds(), threading.active_count(), len(process.children(recursive=True)))

    def within(self, other: "Resources") -> bool:
        """Return True if no number exceeds that of `other`."""
        return self.files <= other.files and self.threads <= other.threads and self.processes <= other.processes


def check_leftovers(harness: Harness) -> None:
    """Check that closed sessions leave no files, threads or processes behind."""
    count = min(SESSIONS, harness.env.hosting.sessions)
    items = [harness.items[number % len(harness.items)] for number in range(count)]
    scripts = [harness.script(item)[:TURNS] for item in items]
    harness.play(items[0], scripts[0])
    before = settled(None)
    sessions: dict[int, EnvAdapter] = {}

    async def begin(number: int, item: TaskItem) -> None:
        sessions[number] = harness.new_session()
        await harness.reset(sessions[number], item)
        for action in scripts[number]:
            if (await harness.step(sessions[number], action)).terminated:
                return

    async def end(number: int) -> None:
        await harness.close(sessions.pop(number))

    threads = harness.threads(count)
    harness.run([partial(begin, number, item) for number, item in enumerate(items)], threads)
    harness.run([partial(end, number) for number in range(count)], threads)
    harness.end(threads)
    after = settled(before)
    for kind in ("files", "threads", "processes"):
        left = getattr(after, kind) - getattr(before, kind)
        if left >= max(2, count // 2):
            raise ContractViolation(
                f"{count} sessions", f"left {left} {kind} open", "Release in close() what reset() took."
            )


def check_session_memory(harness: Harness) -> str:
    """Check that a full host stays within `hosting.memory_mb`.

    Returns:
        Memory of a host and of a session, as text.
    """
    hosting = harness.env.hosting
    try:
        base, each = asyncio.run(measure_memory(harness))
    except AgentError as error:
        raise ContractViolation("a host process", f"does not play: {error}", "See the check before.") from error
    full = base + each * hosting.sessions
    if full > hosting.memory_mb:
        fitting = max(1, int((hosting.memory_mb - base) * 0.8 / each)) if each and base < hosting.memory_mb else 1
        raise ContractViolation(
            f"{hosting.sessions} sessions",
            f"would take about {full:,.0f} MiB in a host, more than hosting.memory_mb={hosting.memory_mb}",
            f"A session takes about {each:.1f} MiB, an empty host {base:.0f} MiB. Share data between sessions, or "
            f"limit the sessions of a host, for example `hosting = Hosting(sessions={fitting})`.",
        )
    return f"{base:.0f} MiB, and about {each:.2f} for each of at most {hosting.sessions} sessions"


async def measure_memory(harness: Harness) -> tuple[float, float]:
    """Return MiB of a host process after one episode, and MiB of each further open session."""
    env, count = harness.env, min(SESSIONS, harness.env.hosting.sessions)
    limits = CallLimits(harness.timeout_s)
    link = await start_process(env, env.hosting, limits, PoolLimits().frozen_s)
    try:
        gauge = MemoryGauge(every_s=0.0, pid=link.pid)

        async def begin(number: int) -> None:
            item = harness.items[number % len(harness.items)]
            await link.call("open", number)
            await link.call("reset", number, item)
            for action in harness.script(item)[:TURNS]:
                if (await link.call("step", number, action)).terminated:
                    return

        await begin(0)
        base = gauge()
        await asyncio.gather(*(begin(number) for number in range(1, count + 1)))
        return base, max(0.0, gauge() - base) / count
    finally:
        await link.end("its memory was measured.")


def settled(goal: Resources | None) -> Resources:
    """Return the resources once they stop changing or are within `goal`, at the latest after `SETTLE_S` seconds."""
    now, since = Resources.now(), time.monotonic()
    until = since + SETTLE_S
    while time.monotonic() < until:
        if goal is not None and now.within(goal):
            return now
        if goal is None and time.monotonic() - since > QUIET_S:
            return now
        time.sleep(0.05)
        last, now = now, Resources.now()
        since = since if now == last else time.monotonic()
    return now
