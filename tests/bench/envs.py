"""Benchmark of the environments over HTTP, compared with a reference server: `make bench-envs`.

python -m tests.bench.envs [--envs textcraft babyai scienceworld] [--clients 1 8 32] [--seconds 4] [--rounds 5]
                           [--json PATH]

One client plays whole sessions on both servers in alternating windows. The benchmark prints which targets are met and
always exits with 0, because speed on a shared machine varies.
"""

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from rich.console import Console

from tests.bench.env_alone import babyai_in_process, scienceworld_in_process, start_times, waiting
from tests.bench.env_play import Players, Window
from tests.bench.env_report import MANY_SESSIONS, Pair, profile, show, speeds
from tests.support.scripts import scripts, strict_scripts
from tests.support.served import Server, serve_command, started
from tests.support.wire_client import Script
from verl_agent.trace.provenance import Provenance

ENVS = ("textcraft", "babyai", "scienceworld")
SPLIT = "test"
MAX_JVMS = 8
"""Most sessions of ScienceWorld on the reference server: each has a JVM, and 32 of them take about 10 GB."""
CONCURRENT_STARTS = 200
WAITING_SESSIONS, WAITING_STEPS = 512, 5


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the arguments; None stands for those of the process."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.envs", description="Measure the environments.")
    parser.add_argument("--envs", nargs="+", choices=ENVS, default=list(ENVS), help="environments (default all)")
    parser.add_argument(
        "--clients", type=int, nargs="+", default=[1, 8, 32], help="numbers of concurrent sessions (default 1 8 32)"
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=4.0,
        help="length of a window (default 4; three times as long for ScienceWorld)",
    )
    parser.add_argument("--rounds", type=int, default=5, help="windows on each server (default 5)")
    parser.add_argument("--json", type=Path, metavar="PATH", help="file for the numbers and their provenance")
    options = parser.parse_args(arguments)
    if min(options.clients) < 1 or options.rounds < 1 or options.seconds <= 0:
        parser.error("--clients and --rounds must be >= 1, and --seconds > 0.")
    return options


@cache
def episodes(env: str) -> list[Script]:
    """Return scripts of oracle episodes that both servers allow."""
    if env == "babyai":
        return strict_scripts(SPLIT, 40)
    return scripts(env, SPLIT, 40, range(4, 40)) if env == "textcraft" else scripts(env, SPLIT, 12, range(6, 30))


def reference_command(env: str) -> list[str]:
    """Return the command of the reference server."""
    return [sys.executable, "-m", "tests.bench.reference", env, SPLIT]


def ours_command(env: str) -> list[str]:
    """Return the command of `verl-agent serve` with four hosts."""
    return serve_command(env, "--split", SPLIT, "--hosts", "4")


async def play(
    ours: Server, theirs: Server, played: Sequence[Script], clients: int, seconds: float, rounds: int
) -> Any:
    """Measure alternating windows on both servers, and return both lists."""
    players = [Players(ours, played), Players(theirs, played)]
    windows: tuple[list[Window], list[Window]] = ([], [])
    for one in players:
        await one.begin(clients)
        await one.play(seconds / 4)
    for _ in range(rounds):
        for one, measured in zip(players, windows, strict=True):
            measured.append(await one.play(seconds))
    return windows


def compare(env: str, clients: int, seconds: float, rounds: int) -> Pair:
    """Measure one environment with one number of clients."""
    played, both = episodes(env), env != "scienceworld" or clients <= MAX_JVMS
    with started(ours_command(env)) as ours, started(reference_command(env if both else "textcraft")) as theirs:
        if both:
            mine, other = asyncio.run(play(ours, theirs, played, clients, seconds, rounds))
        else:
            mine, other = asyncio.run(play_alone(ours, played, clients, seconds, rounds)), []
        sizes = [(usage.rss_mb, usage.pss_mb) for usage in (ours.usage(), theirs.usage())]
    return Pair(env, clients, mine, other, *sizes)


async def play_alone(ours: Server, played: Sequence[Script], clients: int, seconds: float, rounds: int) -> list[Window]:
    """Measure windows on `verl-agent serve` only."""
    players = Players(ours, played)
    await players.begin(clients)
    return [await players.play(seconds) for _ in range(rounds)]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print the tables, and write the numbers to a file if `--json` is set."""
    options, console, load = parse(arguments), Console(width=150), os.getloadavg()[0]
    pairs, starts, alone = [], [], []
    with console.status("starting") as status:
        for env in options.envs:
            for clients in options.clients:
                status.update(f"{env}: {clients} clients, {options.rounds} windows on each server")
                long = 3 if env == "scienceworld" else 1
                pairs.append(compare(env, clients, long * options.seconds, options.rounds))
                console.print(speeds(pairs[-1:]), profile(pairs[-1:]))
            status.update(f"{env}: {CONCURRENT_STARTS} sessions at once")
            with started(ours_command(env)) as server:
                starts.append(asyncio.run(start_times(env, "ours", server, episodes(env), CONCURRENT_STARTS)))
            if env in MANY_SESSIONS:
                with started(reference_command(env)) as server:
                    starts.append(asyncio.run(start_times(env, "reference", server, episodes(env), CONCURRENT_STARTS)))
        status.update("in process")
        if "babyai" in options.envs:
            alone.append(babyai_in_process(episodes("babyai"), SPLIT))
        if "scienceworld" in options.envs:
            alone.append(scienceworld_in_process(episodes("scienceworld"), SPLIT))
        status.update(f"{WAITING_SESSIONS} sessions that wait")
        waits = [waiting(WAITING_SESSIONS, WAITING_STEPS)]
    targets = show(console, pairs, alone, starts, waits)
    console.print(f"Load average of the machine before the measurement: {load:.1f}.")
    if options.json:
        numbers = {
            "provenance": asdict(Provenance.collect()),
            "load_average_before": load,
            "pairs": [_numbers(pair) for pair in pairs],
            "in_process": [asdict(one) for one in alone],
            "start_times": [asdict(one) for one in starts],
            "waiting": [asdict(one) for one in waits],
            "targets": [{**asdict(target), "met": target.met} for target in targets],
        }
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(numbers, indent=2) + "\n", encoding="utf-8")
        console.print(f"Numbers: {options.json}")


def _numbers(pair: Pair) -> dict[str, Any]:
    windows = {
        name: [
            {
                "steps_per_s": one.steps_per_s,
                "step_ms": one.step_ms,
                "reset_ms": one.reset_ms,
                "cores": {"client": one.client_cores, "server": one.server_cores, "started": one.host_cores},
            }
            for one in measured
        ]
        for name, measured in (("ours", pair.ours), ("reference", pair.theirs))
    }
    memory = {"ours_mb": pair.ours_mb, "reference_mb": pair.theirs_mb}
    return {"env": pair.env, "clients": pair.clients, "ratio": pair.ratio, **memory, **windows}


if __name__ == "__main__":
    main()
