"""Many browser sessions at once on one machine: steps a second, memory a session, resets, and what stays behind.

`python -m tests.bench.web_sessions [--sessions 16] [--episodes 64] [--url http://...]`; without `--url` on a list of 30
products of our own (some 900 nodes), served by a process of its own.
"""

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import time
from functools import partial
from http.server import ThreadingHTTPServer
from pathlib import Path

import psutil

from env_adapters.webarena.adapter import WebArena
from env_adapters.webarena.browser import farm
from env_adapters.webarena.running import BrowserLimits
from tests.bench.web_text import Quiet, computed
from verl_agent.types import TaskItem

STEPS = 10
PRODUCTS = 30


def serve() -> None:
    """Serve the shop until the process is ended; says its port first."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory="/"))
    print(server.server_port, flush=True)  # noqa: T201 - read by the process that started this one
    server.serve_forever()


class Figures:
    """What the sessions took."""

    def __init__(self) -> None:
        self.resets: list[float] = []
        self.steps: list[float] = []
        self.errors: list[str] = []


async def episode(url: str, number: int, figures: Figures, steps: int = STEPS) -> None:
    """Play some steps as an agent would: look around, open a product, come back, type."""
    draw = random.Random(number)
    evaluation = {"eval_types": ["string_match"], "reference_answers": {"exact_match": "done"}}
    data = {"sites": ["shopping"], "intent": "Look around.", "start_url": url, "eval": evaluation}
    env = WebArena(sites={"shopping": url})
    try:
        begun = time.perf_counter()
        text = (await env.reset(TaskItem("webarena", str(number), data)))[-1]["content"]
        figures.resets.append(time.perf_counter() - begun)
        for _ in range(steps):
            begun = time.perf_counter()
            result = await env.step(choose(text, draw))
            figures.steps.append(time.perf_counter() - begun)
            text = result.observation
        await env.step("stop [done]")
    except Exception as error:  # a figure too
        figures.errors.append(f"{type(error).__name__}: {error}")
    finally:
        await env.close()


def choose(text: str, draw: random.Random) -> str:
    """An action on what is seen."""
    lines = [line.strip() for line in text.splitlines() if line.strip().startswith("[")]
    links = [line[1 : line.index("]")] for line in lines if "] link '" in line]
    fields = [line[1 : line.index("]")] for line in lines if "] textbox '" in line]
    kind = draw.random()
    if kind < 0.45 and links:
        return f"click [{draw.choice(links)}]"
    if kind < 0.6 and fields:
        return f"type [{draw.choice(fields)}] [12] [0]"
    return "go_back" if kind < 0.75 else f"scroll [{draw.choice(['down', 'up'])}]"


def family() -> tuple[int, int, float]:
    """Processes below this one, its file handles, and MiB of all, shared memory counted once."""
    me = psutil.Process()
    total = 0.0
    processes = [me, *me.children(recursive=True)]
    for process in processes:
        try:
            total += process.memory_full_info().pss / 2**20
        except psutil.Error:
            continue
    return len(processes), len(os.listdir("/proc/self/fd")), total


async def main(sessions: int, episodes: int, steps: int, url: str) -> None:
    """Play, and print the figures."""
    figures, room = Figures(), asyncio.Semaphore(sessions)
    browser_mb: list[float] = []
    samples = []

    async def one(number: int) -> None:
        async with room:
            await episode(url, number, figures, steps)
        if number % max(1, episodes // 10) == 0:
            samples.append([number, *(round(value) for value in family())])

    async def weigh() -> None:
        while True:
            await asyncio.sleep(3)
            running = [(one.memory_mb(), one.open) for one in farm(BrowserLimits()).browsers]
            if sum(count for _, count in running) == sessions:
                browser_mb.append(sum(taken for taken, _ in running) / sessions)

    await episode(url, -1, Figures())  # starts the browser
    scale = asyncio.create_task(weigh())
    begun, before = time.perf_counter(), computed()
    await asyncio.gather(*map(one, range(episodes)))
    seconds = time.perf_counter() - begun
    cpu_s = computed() - before
    scale.cancel()
    report = {
        "sessions": sessions,
        "episodes": episodes,
        "steps_per_s": round(len(figures.steps) / seconds, 1),
        "cpu_ms_per_step": round(1000 * cpu_s / len(figures.steps)),
        "step_median_s": round(statistics.median(figures.steps), 3),
        "reset_median_s": round(statistics.median(figures.resets), 3),
        "browser_mb_per_session": round(statistics.median(browser_mb)) if browser_mb else None,
        "errors": figures.errors[:5],
        "episode, processes, handles, MiB": samples,
        "load": os.getloadavg()[0],
    }
    print(json.dumps(report))  # noqa: T201


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, default=16)
    parser.add_argument("--episodes", type=int, default=64)
    parser.add_argument("--steps", type=int, default=STEPS, help="of an episode")
    parser.add_argument("--url")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve()
        sys.exit()
    command = [sys.executable, "-m", "tests.bench.web_sessions", "--serve"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]) as server:
        assert server.stdout is not None
        address = given.url or f"http://127.0.0.1:{server.stdout.readline().strip()}/shop/{PRODUCTS}"
        try:
            asyncio.run(main(given.sessions, given.episodes, given.steps, address))
        finally:
            server.terminate()
