"""Benchmark of many parallel browser sessions: steps per second, CPU time, memory, resets, and leaked resources.

`python -m tests.bench.web_sessions [--pages shop] [--sessions 16] [--episodes 64] [--steps 10]` plays the read-only
tasks of the embedded shop (`verl-agent sites up`), each in its own copy. With `--pages list` it plays generated lists
of 30 products (some 900 nodes). It prints samples of the resource usage while it runs, and a line of JSON at the end.
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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import ThreadingHTTPServer
from typing import Any

from env_adapters.web_sites.source import EmbeddedTasks
from env_adapters.webarena.adapter import WebArena
from env_adapters.webarena.browser.pool import browser_pool
from env_adapters.webarena.browser.process import BrowserLimits
from tests import ROOT
from tests.bench.web_cost import BROWSER, copies_mb, cpu_seconds, resource_usage, sites_process
from tests.bench.web_text import BenchHandler
from verl_agent.types import TaskItem

STEPS = 10
PRODUCTS = 30
SAMPLE_S = 10.0
"""Seconds between two measurements of the memory; half of it is the wait after all sessions have closed."""
Workload = tuple[Callable[[], WebArena], Callable[[int], TaskItem], int]
"""Factory of environments, item of an episode by its number, and process id of the server of the pages."""


class Figures:
    """Measurements of the sessions."""

    def __init__(self) -> None:
        self.resets: list[float] = []
        self.steps: list[float] = []
        self.chars: list[int] = []
        self.errors: list[str] = []
        self.browser_mb: list[float] = []
        self.copies_mb: list[float] = []
        self.samples: list[dict[str, float]] = []


def serve() -> None:
    """Print the port, then serve the generated lists until the process is killed."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(BenchHandler, directory="/"))
    print(server.server_port, flush=True)  # noqa: T201 - read by the process that started this one
    server.serve_forever()


@contextmanager
def lists() -> Iterator[Workload]:
    """Yield the workload of the generated lists, served by another process."""
    command = [sys.executable, "-m", "tests.bench.web_sessions", "--serve"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as server:
        assert server.stdout is not None
        url = f"http://127.0.0.1:{server.stdout.readline().strip()}/shop/{PRODUCTS}"
        evaluation = {"eval_types": ["string_match"], "reference_answers": {"exact_match": "done"}}
        data = {"sites": ["shopping"], "intent": "Look around.", "start_url": url, "eval": evaluation}
        try:
            yield (
                partial(WebArena, sites={"shopping": url}),
                lambda number: TaskItem("webarena", str(number), data),
                server.pid,
            )
        finally:
            server.terminate()


@contextmanager
def shop() -> Iterator[Workload]:
    """Yield the workload of the read-only tasks of the embedded shop."""
    items = [item for item in EmbeddedTasks().items("train") if item.data["sites"] == ["shopping"]]
    yield partial(WebArena, tasks="embedded"), lambda number: items[number % len(items)], sites_process()


PAGES = {"shop": shop, "list": lists}


async def play_episode(env: WebArena, item: TaskItem, rng: random.Random, figures: Figures, steps: int) -> None:
    """Play some steps like an agent: scroll, open a product, go back, type, search."""
    try:
        started_at = time.perf_counter()
        text = (await env.reset(item))[-1]["content"]
        figures.resets.append(time.perf_counter() - started_at)
        for _ in range(steps):
            started_at = time.perf_counter()
            result = await env.step(choose_action(text, rng))
            figures.steps.append(time.perf_counter() - started_at)
            text = result.observation
            figures.chars.append(len(text))
        await env.step("stop [done]")
    except Exception as error:  # the report counts errors
        figures.errors.append(f"{item.id}: {type(error).__name__}: {error}")
    finally:
        await env.close()


def choose_action(text: str, rng: random.Random) -> str:
    """Return a random action that neither orders nor logs out; a tenth of the typed texts is submitted."""
    lines = [line.strip() for line in text.splitlines() if line.strip().startswith("[")]
    links = [line[1 : line.index("]")] for line in lines if "] link '" in line and "Logout'" not in line]
    fields = [line[1 : line.index("]")] for line in lines if "] textbox '" in line or "] searchbox '" in line]
    kind = rng.random()
    if kind < 0.45 and links:
        return f"click [{rng.choice(links)}]"
    if kind < 0.6 and fields:
        return f"type [{rng.choice(fields)}] [12] [{int(rng.random() < 0.1)}]"
    return "go_back" if kind < 0.75 else f"scroll [{rng.choice(['down', 'up'])}]"


async def main(sessions: int, episodes: int, steps: int, workload: Workload) -> dict[str, Any]:
    """Play the episodes and return the report."""
    make, make_item, server = workload
    figures, limit = Figures(), asyncio.Semaphore(sessions)
    embedded = isinstance(make().source, EmbeddedTasks)

    async def play(number: int) -> None:
        async with limit:
            await play_episode(make(), make_item(number), random.Random(number), figures, steps)
        if number % max(1, episodes // 10) == 0:
            usage = {name: round(value) for name, value in resource_usage(server).items()}
            figures.samples.append({"episode": number} | usage)
            sys.stderr.write(f"{figures.samples[-1]}, {len(figures.errors)} errors\n")

    async def sample_memory() -> None:
        while True:
            await asyncio.sleep(SAMPLE_S)
            if sum(browser.open_contexts for browser in browser_pool(BrowserLimits()).browsers) == sessions:
                figures.browser_mb.append((await asyncio.to_thread(resource_usage, server))[BROWSER] / sessions)
                if embedded:
                    count, size = copies_mb()
                    figures.copies_mb.append(size / max(1, count))

    await play_episode(make(), make_item(0), random.Random(0), Figures(), steps)  # starts the browser
    await asyncio.sleep(SAMPLE_S / 2)
    idle = resource_usage(server)
    sampling = asyncio.create_task(sample_memory())
    started_at, before = time.perf_counter(), cpu_seconds(server)
    await asyncio.gather(*map(play, range(episodes)))
    seconds, after = time.perf_counter() - started_at, cpu_seconds(server)
    sampling.cancel()
    await asyncio.sleep(SAMPLE_S / 2)
    idle_usage = {"sessions": sessions, "idle at first": idle, "idle at last": resource_usage(server)}
    return report(figures, seconds, {name: after[name] - before[name] for name in after}) | idle_usage


def report(figures: Figures, seconds: float, cpu_s: dict[str, float]) -> dict[str, Any]:
    """Return a summary of the measurements."""
    steps = max(1, len(figures.steps))
    return {
        "episodes": len(figures.resets),
        "steps": len(figures.steps),
        "seconds": round(seconds, 1),
        "steps_per_s": round(len(figures.steps) / seconds, 1),
        "cpu_ms_per_step": round(1000 * sum(cpu_s.values()) / steps, 1),
        "of which": {name: round(1000 * value / steps, 1) for name, value in cpu_s.items()},
        "step_median_s": round(statistics.median(figures.steps), 3),
        "reset_median_s": round(statistics.median(figures.resets), 3),
        "reset_p90_s": round(statistics.quantiles(figures.resets, n=10)[-1], 3),
        "text_chars": round(statistics.mean(figures.chars)),
        "browser_mb_per_session": round(statistics.median(figures.browser_mb)) if figures.browser_mb else None,
        "copy_mb_per_session": round(statistics.median(figures.copies_mb), 1) if figures.copies_mb else None,
        "errors": [len(figures.errors), *figures.errors[:5]],
        "samples": figures.samples,
        "load": round(os.getloadavg()[0], 1),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pages", choices=PAGES, default="shop")
    parser.add_argument("--sessions", type=int, default=16)
    parser.add_argument("--episodes", type=int, default=64)
    parser.add_argument("--steps", type=int, default=STEPS, help="steps of an episode")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve()
        sys.exit()
    with PAGES[arguments.pages]() as selected:
        figures = asyncio.run(main(arguments.sessions, arguments.episodes, arguments.steps, selected))
        print(json.dumps(figures))  # noqa: T201 - the result of the command
