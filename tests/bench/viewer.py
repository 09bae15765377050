"""Measures the viewer on a large run: time to build the index, server time of each page, and memory.

It writes a run of 2 GB into a temporary folder, and deletes it at the end. Seconds are wall-clock time. CPU seconds,
which other programs on the machine disturb less, stand beside them.
"""

import json
import random
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import nicegui
import psutil
import typer

GROUPS, SAMPLES, TURNS = 125, 8, 10
REPEATS = 3
"""Requests of a page after the first."""
SMALL = f"/_nicegui/{nicegui.__version__}/static/nicegui.css"
"""Path of a small answer, which only a server whose event loop is free gives at once."""
PAGES = {
    "start": "/",
    "run": "/run/run",
    "run, mean of 10 steps over tokens": "/run/run?x=tokens&smooth=10",
    "episodes": "/run/run/episodes",
    "episodes, filter and sort": "/run/run/episodes?success=no&loop=1..&sort=-turns",
    "episodes, rare words": "/run/run/episodes?text=the+silver+{step}",
    "episodes, frequent word": "/run/run/episodes?text=word7",
    "episodes, last page": "/run/run/episodes?page={pages}",
    "episode": "/run/run/episode/{middle}",
    "episode in a filter": "/run/run/episode/{middle}?purpose=train&sort=-reward",
    "groups": "/run/run/group",
    "group": "/run/run/group?group=g3&step={step}&purpose=train",
    "tasks": "/run/run/task",
    "task": "/run/run/task?env=talk&task=t3",
    "horizon": "/run/run/horizon",
    "labels": "/run/run/labels",
    "compare two steps": "/compare?a=run&b=run&a_step=1&b_step={step}",
    "compare halves": "/compare?a=run&b=run&a_step=..{half}&b_step={half}..",
    "compare one task": "/compare?a=run&b=run&a_step=1&b_step={step}&env=talk&task=t3",
}
"""Pages that are measured, by name."""
LONG_PAGES = {
    "long episode": "/run/run/episode/1",
    "long episode, last turns": "/run/run/episode/1?turn={turns}",
    "group of a long episode": "/run/run/group?group=g0&step=50&purpose=train",
}
"""Pages of a run with one long episode."""


@dataclass(slots=True)
class Waits:
    """Longest wait of a small request, and the longest in CPU seconds of the server, whatever else the machine does."""

    wall_s: float = 0.0
    cpu_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Cost:
    """Time and memory of one measured part; of the first request of a page and of the slowest later one."""

    name: str
    wall_s: float
    cpu_s: float
    memory_mb: float
    others: Waits
    """Of small requests that were sent beside the index, or beside the first request."""
    later_cpu_s: float = float("nan")


def records(episodes: int) -> Iterator[dict[str, Any]]:
    """Yield records of one training run, with about 20 KB each."""
    rng = random.Random(1)
    words = [f"word{number}" for number in range(100)] + [
        "".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(3, 9))) for _ in range(5000)
    ]
    texts = [" ".join(rng.choices(words, k=90)) for _ in range(2000)]
    for number in range(episodes):
        step, place = divmod(number, GROUPS * SAMPLES)
        group, sample = divmod(place, SAMPLES)
        yield record(rng, texts, step + 1, group, sample)


def record(rng: random.Random, texts: list[str], step: int, group: int, sample: int) -> dict[str, Any]:
    """Return one record; success becomes likelier with the step."""
    solved = rng.random() < min(0.8, 0.1 + step / 200)
    limit = 6 if step < 40 else TURNS
    played = rng.randint(3, limit) if solved else limit
    messages = [{"role": "user", "content": f"Task {group}. {rng.choice(texts)}"}]
    turns = []
    for turn in range(played):
        action = f"go to {rng.randint(0, 9)}"
        reply, observation = f"Thought: {rng.choice(texts)}\nAction: {action}", f"{rng.choice(texts)} silver {step}"
        messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": observation}]
        last = turn == played - 1
        turns.append({
            "reply": reply,
            "action": action,
            "tokens": 120,
            "truncated_by": None,
            "observation": f"the {observation}" if sample == 0 else observation,
            "reward": float(solved and last),
            "terminated": solved and last,
            "info": {"invalid_action": float(rng.random() < 0.1)},
            "generate_s": 1.0,
            "env_s": 0.1,
        })  # fmt: skip
    started = f"2026-01-{1 + step // 24 % 28:02}T{step % 24:02}:{group % 60:02}:00.{sample:03}+00:00"
    return {
        **{"version": 2, "purpose": "train", "env": "talk", "task": f"t{group}", "category": f"c{group % 5}"},
        **{"split": "train", "step": step, "group": f"g{group}", "sample": sample, "attempt": 1, "model": "base"},
        **{"started_at": started, "seconds": 11.0, "max_turns": limit, "prompt_length": 1},
        **{"reward": float(solved), "success": solved, "success_reward": 1.0},
        **{"stop": "terminated" if solved else "turn_limit", "error": ""},
        **{"turns": turns, "messages": messages, "data": {}},
    }


def write_long(folder: Path, turns: int) -> float:
    """Write a run of one episode that uses all its turns, and return its size in GB."""
    for name in ("episodes", "metrics"):
        (folder / name).mkdir(parents=True)
    one = next(records(1))
    one |= {"step": 50, "max_turns": turns, "turns": one["turns"][:1] * turns, "stop": "turn_limit", "success": False}
    one["messages"] = [one["messages"][0], *one["messages"][1:3] * turns]
    (folder / "episodes" / "a.jsonl").write_text(json.dumps(one) + "\n")
    return (folder / "episodes" / "a.jsonl").stat().st_size / 1e9


def write_run(folder: Path, episodes: int) -> float:
    """Write the run, and return its size in GB."""
    for name in ("episodes", "metrics"):
        (folder / name).mkdir(parents=True)
    with (folder / "episodes" / "a.jsonl").open("w") as file:
        for one in records(episodes):
            file.write(json.dumps(one) + "\n")
    with (folder / "metrics" / "a.jsonl").open("w") as file:
        for step in range(1, episodes // (GROUPS * SAMPLES) + 1):
            values = {"actor/entropy": 1 / step} | {f"other/{number}": 0.5 for number in range(200)}
            file.write(json.dumps({"step": step, "data": values}) + "\n")
    return (folder / "episodes" / "a.jsonl").stat().st_size / 1e9


def cpu_of(server: psutil.Process) -> float:
    """Return the CPU seconds of the server."""
    return sum(server.cpu_times()[:2])


@contextmanager
def waiting(server: psutil.Process, start: str) -> Iterator[Waits]:
    """Send small requests to the viewer at `start` while the block runs; yield their waits."""
    waits, ended = Waits(), threading.Event()

    def send_small_ones() -> None:
        while not ended.wait(0.01):
            begun, before = time.perf_counter(), cpu_of(server)
            with urllib.request.urlopen(start + SMALL) as answer:
                answer.read()
            waits.wall_s = max(waits.wall_s, time.perf_counter() - begun)
            waits.cpu_s = max(waits.cpu_s, cpu_of(server) - before)

    beside = threading.Thread(target=send_small_ones)
    beside.start()
    try:
        yield waits
    finally:
        ended.set()
        beside.join()


def measure_index(server: psutil.Process, folder: Path, start: str) -> Cost:
    """Wait until the server has indexed the run."""
    begun, most = time.perf_counter(), 0.0
    with waiting(server, start) as waits:
        while True:
            most = max(most, server.memory_info().rss / 1e6)
            with closing(sqlite3.connect(folder / ".viewer" / "run.sqlite")) as db:
                indexed = db.execute("SELECT sum(indexed) FROM files").fetchone()[0]
            if indexed == (folder / "episodes" / "a.jsonl").stat().st_size:
                break
            time.sleep(0.2)
    return Cost("index", time.perf_counter() - begun, cpu_of(server), most, waits)


def measure_page(server: psutil.Process, name: str, start: str, path: str) -> Cost:
    """Request a page several times, the first time beside small requests."""

    def request() -> tuple[float, float]:
        begun, before = time.perf_counter(), cpu_of(server)
        with urllib.request.urlopen(start + path) as answer:
            answer.read()
        return time.perf_counter() - begun, cpu_of(server) - before

    with waiting(server, start) as waits:
        wall_s, cpu_s = request()
    later = max(request()[1] for _ in range(REPEATS))
    return Cost(name, wall_s, cpu_s, server.memory_info().rss / 1e6, waits, later)


def measure(folder: Path, pages: dict[str, str], places: dict[str, int]) -> list[Cost]:
    """Return the costs of the index and of each page of a run."""
    program = [sys.executable, "-c", "from verl_agent.commands.cli import app; app()"]
    process = subprocess.Popen([*program, "view", str(folder), "--port", "0"], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        found = re.search(r"(http://\S+)/(\?token=\S+)", process.stdout.readline())
        assert found is not None
        urllib.request.install_opener(urllib.request.build_opener(urllib.request.HTTPCookieProcessor()))
        urllib.request.urlopen(f"{found[1]}/{found[2]}").close()
        server = psutil.Process(process.pid)
        costs = [measure_index(server, folder, found[1])]
        return costs + [measure_page(server, name, found[1], path.format(**places)) for name, path in pages.items()]
    finally:
        process.terminate()
        process.wait(20)


def show(title: str, costs: list[Cost]) -> None:
    """Print the costs as a table."""
    typer.echo(f"{title}\n")
    heads = (
        "part",
        "seconds",
        "CPU seconds",
        "CPU seconds, later requests",
        "memory (MB)",
        "others wait (s)",
        "CPU (s)",
    )
    typer.echo(f"| {' | '.join(heads)} |\n{'|---' * len(heads)}|")
    for cost in costs:
        times = f"{cost.wall_s:.2f} | {cost.cpu_s:.2f} | {cost.later_cpu_s:.2f}"
        waits = f"{cost.others.wall_s:.2f} | {cost.others.cpu_s:.2f}"
        typer.echo(f"| {cost.name} | {times} | {cost.memory_mb:.0f} | {waits} |")


def main(
    episodes: Annotated[int, typer.Option(help="Number of episodes.")] = 100_000,
    turns: Annotated[int, typer.Option(help="Turns of the long episode.")] = 100_000,
) -> None:
    """Print the costs of a run with many episodes, and of one with a long episode."""
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "long" / "run"
        size = write_long(folder, turns)
        show(f"an episode of {turns:,} turns, {size:.2f} GB", measure(folder, LONG_PAGES, {"turns": turns}))
        shutil.rmtree(folder)
        folder = Path(parent) / "run"
        size = write_run(folder, episodes)
        steps = episodes // (GROUPS * SAMPLES)
        places = {"step": steps, "half": steps // 2, "middle": episodes // 2, "pages": episodes // 100}
        costs = measure(folder, PAGES, places)
        index = sum(file.stat().st_size for file in (folder / ".viewer").iterdir()) / 1e9
        show(f"\n{episodes:,} episodes, {size:.2f} GB of records, {index:.2f} GB of index", costs)


if __name__ == "__main__":
    typer.run(main)
