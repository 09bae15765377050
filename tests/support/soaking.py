"""Soak test of a server: thousands of episodes by clients that are killed, and the resources that remain in use.

`python -m tests.support.soaking URL` runs one client; it reads its workload as JSON from standard input.
"""

import asyncio
import itertools
import json
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tests.support.served import ROOT, Server, Usage
from tests.support.wire_client import Script, Session

CONCURRENCY = 20
"""Sessions that a client plays at the same time."""
WAIT_S = 120.0


@dataclass(frozen=True, slots=True)
class Workload:
    """Workload of one client.

    Attributes:
        scripts: episodes that the client plays in a cycle.
        finished: number of episodes that it finishes.
        abandoned: number of episodes during which it is killed while a call is running.
    """

    scripts: Sequence[Script]
    finished: int
    abandoned: int


@dataclass(slots=True)
class SoakResult:
    """Result of a soak test.

    Attributes:
        episodes: number of finished and abandoned episodes.
        abandoned: number of abandoned episodes.
        solved: number of episodes that terminated.
        seconds: duration of the test.
        start: usage after the first client, when the server had closed its sessions.
        samples: number of episodes so far and usage, after each further client.
        end: usage after the last client, when the server had closed its sessions.
        stats: answer to `/stats` at the end.
    """

    episodes: int = 0
    abandoned: int = 0
    solved: int = 0
    seconds: float = 0.0
    start: Usage | None = None
    samples: list[tuple[int, Usage]] = field(default_factory=list)
    end: Usage | None = None
    stats: dict[str, Any] = field(default_factory=dict)

    @property
    def tenth_mb(self) -> float:
        """Memory (PSS) in MiB after the first tenth of the episodes."""
        return next(usage.pss_mb for played, usage in self.samples if played >= self.episodes / 10)

    @property
    def most_mb(self) -> float:
        """Most memory (PSS) in MiB after the first tenth."""
        return max(usage.pss_mb for played, usage in self.samples if played > self.episodes / 10)

    def __str__(self) -> str:
        assert self.start is not None and self.end is not None
        before, after = self.start, self.end
        return (
            f"{self.episodes} episodes, {self.abandoned} abandoned, {self.solved} solved, {self.seconds:.0f} s; "
            f"sessions left {self.stats['open_sessions']}, file handles {before.files} -> {after.files}, "
            f"threads {before.threads} -> {after.threads}, processes {before.processes} -> {after.processes}, "
            f"MiB {before.pss_mb:.0f} at the start, {self.tenth_mb:.0f} after the first tenth, "
            f"{self.most_mb:.0f} at most after it, {after.pss_mb:.0f} at the end"
        )


def soak(server: Server, workload: Workload, clients: int) -> SoakResult:
    """Run clients one after another and kill each of them."""
    result, started = SoakResult(), time.monotonic()
    _client(server, workload)
    result.start = _settled(server)
    for _ in range(clients):
        result.solved += _client(server, workload)
        result.episodes += workload.finished + workload.abandoned
        result.abandoned += workload.abandoned
        result.samples.append((result.episodes, server.usage()))
    result.end = _settled(server)
    result.stats, result.seconds = stats(server), time.monotonic() - started
    return result


def stats(server: Server) -> dict[str, Any]:
    """Return the answer to `/stats`."""
    with urllib.request.urlopen(f"{server.url}/stats", timeout=WAIT_S) as answer:
        return dict(json.load(answer))


def _client(server: Server, workload: Workload) -> int:
    """Run a client until it has played, kill it, and return the number of its solved episodes."""
    command = [sys.executable, "-m", "tests.support.soaking", server.url]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps(asdict(workload)))
        process.stdin.close()
        line = process.stdout.readline()
        process.send_signal(signal.SIGKILL)
        assert line, f"the client ended with {process.wait()} before it had played"
    return int(line)


def _settled(server: Server) -> Usage:
    """Return the usage of the server once it has closed all sessions and the usage is constant."""
    give_up = time.monotonic() + WAIT_S
    while (now := stats(server))["open_sessions"] or now["pool_sessions"]:
        assert time.monotonic() < give_up, f"sessions are still open: {now}"
        time.sleep(0.2)
    last = server.usage()
    while True:
        time.sleep(1.0)
        usage = server.usage()
        if (usage.files, usage.threads) == (last.files, last.threads) or time.monotonic() > give_up:
            return usage
        last = usage


async def run_client(url: str, workload: Workload) -> None:
    """Play the workload, print the number of solved episodes, and wait to be killed."""
    scripts = itertools.cycle(workload.scripts)
    remaining = iter(range(workload.finished))
    solved = sum(await asyncio.gather(*(_play(url, scripts, remaining) for _ in range(CONCURRENCY))))
    left = []
    for _ in range(workload.abandoned):
        session, script = await Session.open(url), next(scripts)
        await session.reset(script.item)
        half = len(script.actions) // 2
        for action in script.actions[:half]:
            await session.step(action)
        left.append(asyncio.create_task(session.step(script.actions[half])))
        await asyncio.sleep(0.01)  # the request leaves
    sys.stdout.write(f"{solved}\n")
    sys.stdout.flush()
    await asyncio.sleep(WAIT_S)


async def _play(url: str, scripts: Iterator[Script], remaining: Iterator[int]) -> int:
    """Play the remaining episodes, each in a new session, and return the number of solved ones."""
    solved = 0
    for _ in remaining:
        session, script = await Session.open(url), next(scripts)
        await session.reset(script.item)
        answers = [await session.step(action) for action in script.actions]
        solved += answers[-1]["done"]
        await session.close()
    return solved


def main() -> None:
    """Run one client."""
    fields = json.load(sys.stdin)
    scripts = [Script(**script) for script in fields.pop("scripts")]
    asyncio.run(run_client(sys.argv[1], Workload(scripts, **fields)))


if __name__ == "__main__":
    main()
