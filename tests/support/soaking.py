"""Play thousands of episodes on a server with clients that are killed in the middle, and see what is left of them.

`python -m tests.support.soaking URL` is one such client; it reads what to play from its standard input.
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
from tests.support.wire_client import Connection, Script, Session

AT_ONCE = 20
"""Sessions that a client plays at a time."""
WAIT_S = 120.0


@dataclass(frozen=True, slots=True)
class Order:
    """What one client has to do.

    Attributes:
        scripts: episodes that it plays, in turn.
        finished: episodes that it plays to their end.
        abandoned: episodes in whose middle it is killed, the answer of a call outstanding.
    """

    scripts: Sequence[Script]
    finished: int
    abandoned: int


@dataclass(slots=True)
class Soak:
    """What a server took on the way.

    Attributes:
        episodes: played or abandoned.
        abandoned: of them.
        solved: that ended.
        seconds: for all.
        start: after a first client, when all that it left had been forgotten.
        samples: after each further client, with episodes played until then.
        end: after the last one, when all that it left had been forgotten.
        stats: of the server at the end.
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
        """MiB after the first tenth of the episodes."""
        return next(usage.pss_mb for played, usage in self.samples if played >= self.episodes / 10)

    @property
    def most_mb(self) -> float:
        """Most MiB after the first tenth."""
        return max(usage.pss_mb for played, usage in self.samples if played > self.episodes / 10)

    def __str__(self) -> str:
        """The figures in a line."""
        assert self.start is not None and self.end is not None
        before, after = self.start, self.end
        return (
            f"{self.episodes} episodes, {self.abandoned} abandoned, {self.solved} solved, {self.seconds:.0f} s; "
            f"sessions left {self.stats['open_sessions']}, file handles {before.files} -> {after.files}, "
            f"threads {before.threads} -> {after.threads}, processes {before.processes} -> {after.processes}, "
            f"MiB {before.pss_mb:.0f} at the start, {self.tenth_mb:.0f} after the first tenth, "
            f"{self.most_mb:.0f} at most after it, {after.pss_mb:.0f} at the end"
        )


def soak(server: Server, order: Order, clients: int) -> Soak:
    """Let clients play one after another, and be killed.

    Args:
        server: where they play; it must forget idle sessions soon.
        order: what each of them does.
        clients: how many, the first one aside, which only warms the server up.
    """
    found, started = Soak(), time.monotonic()
    _client(server, order)
    found.start = _settled(server)
    for _ in range(clients):
        found.solved += _client(server, order)
        found.episodes += order.finished + order.abandoned
        found.abandoned += order.abandoned
        found.samples.append((found.episodes, server.usage()))
    found.end = _settled(server)
    found.stats, found.seconds = stats(server), time.monotonic() - started
    return found


def stats(server: Server) -> dict[str, Any]:
    """What the server says of itself."""
    with urllib.request.urlopen(f"{server.url}/stats", timeout=WAIT_S) as answer:
        return dict(json.load(answer))


def _client(server: Server, order: Order) -> int:
    """One client from its start to its death; returns how many of its episodes ended."""
    command = [sys.executable, "-m", "tests.support.soaking", server.url]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps(asdict(order)))
        process.stdin.close()
        said = process.stdout.readline()
        process.send_signal(signal.SIGKILL)
        assert said, f"the client ended with {process.wait()} before it had played"
    return int(said)


def _settled(server: Server) -> Usage:
    """What the server takes once it has forgotten all sessions and nothing changes any more."""
    give_up = time.monotonic() + WAIT_S
    while (now := stats(server))["open_sessions"] or now["pool_sessions"]:
        assert time.monotonic() < give_up, f"sessions are left: {now}"
        time.sleep(0.2)
    last = server.usage()
    while True:
        time.sleep(1.0)
        usage = server.usage()
        if (usage.files, usage.threads) == (last.files, last.threads) or time.monotonic() > give_up:
            return usage
        last = usage


async def be_a_client(url: str, order: Order) -> None:
    """Play what is ordered, say how many episodes ended, and wait for the end."""
    scripts = itertools.cycle(order.scripts)
    left = iter(range(order.finished))
    solved = sum(await asyncio.gather(*(_play(url, scripts, left) for _ in range(AT_ONCE))))
    for _ in range(order.abandoned):
        session, script = await _open(url), next(scripts)
        await session.reset(script.item)
        half = len(script.actions) // 2
        for action in script.actions[:half]:
            await session.step(action)
        session.connection.send("/step", session.step_body(script.actions[half]))
    sys.stdout.write(f"{solved}\n")
    sys.stdout.flush()
    await asyncio.sleep(WAIT_S)


async def _open(url: str) -> Session:
    session = Session(await Connection.to(url))
    await session.create()
    return session


async def _play(url: str, scripts: Iterator[Script], left: Iterator[int]) -> int:
    """Play episodes as long as some are left, a session each; returns how many ended."""
    solved = 0
    for _ in left:
        session, script = await _open(url), next(scripts)
        await session.reset(script.item)
        answers = [await session.step(action) for action in script.actions]
        solved += answers[-1]["done"]
        await session.close()
        session.connection.close()
    return solved


def main() -> None:
    """Be a client."""
    told = json.load(sys.stdin)
    scripts = [Script(**one) for one in told.pop("scripts")]
    asyncio.run(be_a_client(sys.argv[1], Order(scripts, **told)))


if __name__ == "__main__":
    main()
