"""Many browser sessions at once on one machine: steps a second, computing a step, memory, resets, what stays behind.

`python -m tests.bench.web_sessions [--pages shop] [--sessions 16] [--episodes 64] [--steps 10]`: the reading tasks of
the embedded shop (`verl-agent sites up`), each in a copy of its own, or with `--pages list` lists of 30 products of our
own (some 900 nodes). A line of JSON at the end; samples of memory, processes and handles also on the way.
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
from pathlib import Path
from typing import Any

from env_adapters.webarena.adapter import WebArena
from env_adapters.webarena.browser.pool import browser_pool
from env_adapters.webarena.browser.process import BrowserLimits
from env_adapters.webarena.tasks.embedded import EmbeddedTasks
from tests.bench.web_cost import BROWSER, computed_s, copies_mb, sites_process, taken
from tests.bench.web_text import Quiet
from verl_agent.types import TaskItem

STEPS = 10
PRODUCTS = 30
LOOK_S = 10.0
"""Seconds between two looks at the memory; half of it after all sessions have closed, for what ends with them."""
Work = tuple[Callable[[], WebArena], Callable[[int], TaskItem], int]
"""What makes an environment, the item of an episode by its number, and the process that serves the pages."""


class Figures:
    """What the sessions took."""

    def __init__(self) -> None:
        self.resets: list[float] = []
        self.steps: list[float] = []
        self.chars: list[int] = []
        self.errors: list[str] = []
        self.browser_mb: list[float] = []
        self.copies_mb: list[float] = []
        self.samples: list[dict[str, float]] = []


def serve() -> None:
    """Serve our own lists until the process is ended; says its port first."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory="/"))
    print(server.server_port, flush=True)  # noqa: T201 - read by the process that started this one
    server.serve_forever()


@contextmanager
def lists() -> Iterator[Work]:
    """Lists of our own, served by a process of its own."""
    command = [sys.executable, "-m", "tests.bench.web_sessions", "--serve"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]) as server:
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
def shop() -> Iterator[Work]:
    """The reading tasks of the embedded shop."""
    items = [item for item in EmbeddedTasks().items("train") if item.data["sites"] == ["shopping"]]
    yield partial(WebArena, tasks="embedded"), lambda number: items[number % len(items)], sites_process()


PAGES = {"shop": shop, "list": lists}


async def episode(env: WebArena, item: TaskItem, draw: random.Random, figures: Figures, steps: int) -> None:
    """Play some steps as an agent would: look around, open a product, come back, type, search."""
    try:
        begun = time.perf_counter()
        text = (await env.reset(item))[-1]["content"]
        figures.resets.append(time.perf_counter() - begun)
        for _ in range(steps):
            begun = time.perf_counter()
            result = await env.step(choose(text, draw))
            figures.steps.append(time.perf_counter() - begun)
            text = result.observation
            figures.chars.append(len(text))
        await env.step("stop [done]")
    except Exception as error:  # a figure too
        figures.errors.append(f"{item.id}: {type(error).__name__}: {error}")
    finally:
        await env.close()


def choose(text: str, draw: random.Random) -> str:
    """An action on what is seen, reading only: no order, no logging out; a tenth of what is typed is sent off."""
    lines = [line.strip() for line in text.splitlines() if line.strip().startswith("[")]
    links = [line[1 : line.index("]")] for line in lines if "] link '" in line and "Logout'" not in line]
    fields = [line[1 : line.index("]")] for line in lines if "] textbox '" in line or "] searchbox '" in line]
    kind = draw.random()
    if kind < 0.45 and links:
        return f"click [{draw.choice(links)}]"
    if kind < 0.6 and fields:
        return f"type [{draw.choice(fields)}] [12] [{int(draw.random() < 0.1)}]"
    return "go_back" if kind < 0.75 else f"scroll [{draw.choice(['down', 'up'])}]"


async def main(sessions: int, episodes: int, steps: int, work: Work) -> dict[str, Any]:
    """Play; returns the figures."""
    make, make_item, server = work
    figures, room = Figures(), asyncio.Semaphore(sessions)
    embedded = isinstance(make().source, EmbeddedTasks)

    async def one(number: int) -> None:
        async with room:
            await episode(make(), make_item(number), random.Random(number), figures, steps)
        if number % max(1, episodes // 10) == 0:
            figures.samples.append({"episode": number} | {name: round(value) for name, value in taken(server).items()})
            sys.stderr.write(f"{figures.samples[-1]}, {len(figures.errors)} errors\n")

    async def weigh() -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            if sum(browser.open_contexts for browser in browser_pool(BrowserLimits()).browsers) == sessions:
                figures.browser_mb.append((await asyncio.to_thread(taken, server))[BROWSER] / sessions)
                if embedded:
                    count, size = copies_mb()
                    figures.copies_mb.append(size / max(1, count))

    await episode(make(), make_item(0), random.Random(0), Figures(), steps)  # starts the browser
    await asyncio.sleep(LOOK_S / 2)
    idle = taken(server)
    scale = asyncio.create_task(weigh())
    begun, before = time.perf_counter(), computed_s(server)
    await asyncio.gather(*map(one, range(episodes)))
    seconds, after = time.perf_counter() - begun, computed_s(server)
    scale.cancel()
    await asyncio.sleep(LOOK_S / 2)
    left = {"sessions": sessions, "idle at first": idle, "idle at last": taken(server)}
    return report(figures, seconds, {part: after[part] - before[part] for part in after}) | left


def report(figures: Figures, seconds: float, cpu_s: dict[str, float]) -> dict[str, Any]:
    """The figures of a run in a few lines."""
    steps = max(1, len(figures.steps))
    return {
        "episodes": len(figures.resets),
        "steps": len(figures.steps),
        "seconds": round(seconds, 1),
        "steps_per_s": round(len(figures.steps) / seconds, 1),
        "cpu_ms_per_step": round(1000 * sum(cpu_s.values()) / steps, 1),
        "of which": {part: round(1000 * value / steps, 1) for part, value in cpu_s.items()},
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
    parser.add_argument("--steps", type=int, default=STEPS, help="of an episode")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve()
        sys.exit()
    with PAGES[given.pages]() as found:
        print(json.dumps(asyncio.run(main(given.sessions, given.episodes, given.steps, found))))  # noqa: T201
