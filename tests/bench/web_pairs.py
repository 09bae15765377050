"""Paired benchmark of the CPU time of a step of the web environment, with a comparison of all observations.

    verl-agent sites up
    python -m tests.bench.web_pairs --other CHECKOUT          # other: the code in another folder
    python -m tests.bench.web_pairs --flags='--some-flag'     # other: the same code, and a further flag of Chromium

Both sides play the same random episodes at the same time, each with a process and a browser of its own. They meet the
same load of the machine, so the ratio of their CPU times is stable even on a busy machine. The CPU time per step also
gives the steps per second of idle cores. A line of JSON is printed for each pair, then a summary.
"""

import argparse
import asyncio
import hashlib
import json
import os
import random
import shlex
import statistics
import subprocess
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from env_adapters.webarena.adapter import WebArena
from env_adapters.webarena.browser.chromium import OVERRIDE, find_chromium
from env_adapters.webarena.browser.process import process_tree
from tests import ROOT
from tests.bench.web_cost import BROWSER, DRIVER, PYTHON, SITES, sites_process
from tests.bench.web_sessions import PAGES, choose_action
from verl_agent.types import TaskItem

SIDES = ("this", "other")
SAMPLE_S = 0.5
"""Seconds between two readings of the CPU times. What a process uses after its last reading is not counted."""


class CpuMeter(threading.Thread):
    """Thread that reads the CPU times of processes and their descendants, and keeps those of ended processes.

    Args:
        roots: process id of the root of each group.
    """

    def __init__(self, roots: Mapping[str, int]) -> None:
        super().__init__(daemon=True)
        self.roots = {group: psutil.Process(pid) for group, pid in roots.items()}
        self.stopped = threading.Event()
        self._seconds: dict[psutil.Process, float] = {}
        self._groups: dict[psutil.Process, tuple[str, str]] = {}

    def run(self) -> None:
        """Read the CPU times until `stopped` is set."""
        while not self.stopped.wait(SAMPLE_S):
            self.read()

    def read(self) -> dict[tuple[str, str], float]:
        """Return the CPU time in seconds by group and component since the processes started."""
        for group, root in self.roots.items():
            for process in process_tree(root):
                try:
                    times = process.cpu_times()
                    if process not in self._groups:
                        self._groups[process] = group, _component(process, root, group)
                except psutil.Error:
                    continue
                self._seconds[process] = times.user + times.system
        totals: dict[tuple[str, str], float] = defaultdict(float)
        for process, seconds in list(self._seconds.items()):
            totals[self._groups[process]] += seconds
        return totals


def _component(process: psutil.Process, root: psutil.Process, group: str) -> str:
    arguments = process.cmdline()
    if group == SITES or "--serve" in arguments:
        return SITES
    if process == root:
        return PYTHON
    return BROWSER if "chromium" in process.name() or any(part.startswith("--type=") for part in arguments) else DRIVER


async def play(env: WebArena, item: TaskItem, rng: random.Random, steps: int) -> list[str]:
    """Play random actions; return the hash of each observation, and the error that ended the episode."""
    hashes = []
    try:
        text = (await env.reset(item))[-1]["content"]
        for _ in range(steps):
            hashes.append(hashlib.sha256(text.encode()).hexdigest()[:12])
            text = (await env.step(choose_action(text, rng))).observation
        hashes.append(hashlib.sha256(text.encode()).hexdigest()[:12])
    except Exception as error:  # the comparison reports errors
        hashes.append(f"{type(error).__name__}: {error}")
    finally:
        await env.close()
    return hashes


async def play_side(options: argparse.Namespace) -> None:
    """Start a browser, wait for a line on the standard input, play all episodes and print their hashes."""
    limit = asyncio.Semaphore(options.sessions)
    with PAGES[options.pages]() as (make, make_item, _):

        async def play_one(number: int) -> list[str]:
            async with limit:
                return await play(make(), make_item(number), random.Random(number), options.steps)

        await play_one(0)
        print("ready", flush=True)  # noqa: T201 - read by the process that started this one
        await asyncio.to_thread(sys.stdin.readline)
        hashes = await asyncio.gather(*map(play_one, range(options.episodes)))
        print(json.dumps(hashes), flush=True)  # noqa: T201 - as above
        await asyncio.to_thread(sys.stdin.readline)


@contextmanager
def side(checkout: Path, flags: str, options: argparse.Namespace) -> Iterator["subprocess.Popen[str]"]:
    """Start the process of a side.

    Args:
        checkout: folder with the code of the side.
        flags: further flags of its Chromium.
        options: options of this command.
    """
    variables = {**os.environ, "PYTHONPATH": str(checkout)}
    names = ("pages", "sessions", "episodes", "steps")
    arguments = [part for name in names for part in (f"--{name}", str(getattr(options, name)))]
    command = [sys.executable, "-P", __file__, "--side", *arguments]
    with tempfile.TemporaryDirectory() as folder:
        if flags:
            script = Path(folder) / "chromium"
            script.write_text(f'#!/bin/sh\nexec {shlex.quote(find_chromium())} "$@" {flags}\n')
            script.chmod(0o755)
            variables[OVERRIDE] = str(script)
        pipe = subprocess.PIPE
        with subprocess.Popen(command, cwd=checkout, env=variables, stdin=pipe, stdout=pipe, text=True) as process:
            yield process


def play_pair(options: argparse.Namespace) -> dict[str, Any]:
    """Play one pair and return its figures."""
    with side(ROOT, "", options) as this, side(options.other.resolve(), options.flags, options) as other:
        processes = dict(zip(SIDES, (this, other), strict=True))
        roots = {name: process.pid for name, process in processes.items()}
        if options.pages == "shop":
            roots[SITES] = sites_process()
        meter = CpuMeter(roots)
        for process in processes.values():
            _answer(process)
        before = meter.read()
        meter.start()
        for process in processes.values():
            _continue(process)
        results = {name: json.loads(_answer(process)) for name, process in processes.items()}
        meter.stopped.set()
        meter.join()
        after = meter.read()
        for process in processes.values():
            _continue(process)
    steps = options.episodes * options.steps
    return pair_figures({key: 1000 * (after[key] - before.get(key, 0.0)) / steps for key in after}, results)


def _answer(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError("a side has ended without a result; its error is above.")
    return line


def _continue(process: "subprocess.Popen[str]") -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def pair_figures(cpu_ms: Mapping[tuple[str, str], float], results: Mapping[str, list[list[str]]]) -> dict[str, Any]:
    """Return the figures of a pair.

    Args:
        cpu_ms: milliseconds of CPU time per step by group and component. The group of the embedded sites serves both
            sides, and each side is charged half of it.
        results: hashes of each episode, by side.
    """
    shared = cpu_ms.get((SITES, SITES), 0.0) / len(SIDES)
    totals = [sum(value for (group, _), value in cpu_ms.items() if group == name) + shared for name in SIDES]
    parts = {name: {part: round(ms, 1) for (group, part), ms in cpu_ms.items() if group == name} for name in SIDES}
    episodes = list(zip(*(results[name] for name in SIDES), strict=True))
    observations = [pair for one, other in episodes for pair in zip(one, other, strict=False)]
    return {
        "cpu_ms_per_step": [round(total, 1) for total in totals],
        "ratio": round(totals[1] / totals[0], 3),
        **parts,
        "sites": round(shared, 1),
        "equal_observations": f"{sum(one == other for one, other in observations)} of {len(observations)}",
        "errors": [text for pair in episodes for hashes in pair for text in hashes if ":" in text][:4],
    }


def summarize(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the medians of all pairs, and the steps per second that their CPU time allows on idle cores."""
    medians = [statistics.median(row["cpu_ms_per_step"][index] for row in rows) for index in range(len(SIDES))]
    return {
        "pairs": len(rows),
        "ratio": round(statistics.median(row["ratio"] for row in rows), 3),
        "other_is_cheaper": f"{sum(row['ratio'] < 1 for row in rows)} of {len(rows)}",
        "cpu_ms_per_step": [round(median, 1) for median in medians],
        "steps_per_s_with_one_core": [round(1000 / median, 1) for median in medians],
        "steps_per_s_with_two_cores": [round(2000 / median, 1) for median in medians],
        "load": round(os.getloadavg()[0], 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--other", type=Path, default=ROOT, help="folder with the code of the other side")
    parser.add_argument("--flags", default="", help="further flags of Chromium on the other side")
    parser.add_argument("--pages", choices=PAGES, default="shop")
    parser.add_argument("--pairs", type=int, default=4)
    parser.add_argument("--sessions", type=int, default=4)
    parser.add_argument("--episodes", type=int, default=16)
    parser.add_argument("--steps", type=int, default=10, help="steps of an episode")
    parser.add_argument("--side", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        asyncio.run(play_side(options))
        return
    rows = []
    for _ in range(options.pairs):
        rows.append(play_pair(options))
        print(json.dumps(rows[-1]), flush=True)  # noqa: T201 - a table of results
    print(json.dumps(summarize(rows)))  # noqa: T201 - the result of the command


if __name__ == "__main__":
    main()
