"""CPU time of a turn in the environments: `python -m tests.bench.environment_times [NAME ...] [--episodes 50]`.

Each environment plays its demonstrations in this process, without a host and without a model. The time of child
processes counts (ScienceWorld's simulator is one in Java). The first episode warms up. `tests.bench.web_sessions`
measures Chromium.
"""

import argparse
import asyncio
import time
from collections.abc import Awaitable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from tests.support.corpus import embedded_corpus
from tests.support.scripts import actions, spread
from verl_agent.envs.base import EnvAdapter
from verl_agent.envs.registry import load_adapter, make_env
from verl_agent.types import TaskItem

NAMES = ("guess_number", "textcraft", "babyai", "deepsearch", "scienceworld")


@dataclass(frozen=True, slots=True)
class Times:
    """Measurements of an environment.

    Attributes:
        reset_ms: milliseconds of CPU time for the first observation of an episode.
        turn_ms: milliseconds of CPU time for a turn.
        turns: turns of each episode.
    """

    reset_ms: float
    turn_ms: float
    turns: list[int]

    @property
    def tenths(self) -> tuple[int, int]:
        """Turns below which a tenth of the episodes stay, and above which a tenth goes."""
        cuts = quantiles(self.turns, n=10, method="inclusive")
        return round(cuts[0]), round(cuts[-1])


def children_s() -> float:
    """Return the CPU time of the children of this process in seconds."""
    times = [child.cpu_times() for child in psutil.Process().children(recursive=True)]
    return float(sum(one.user + one.system for one in times))


async def cpu_ms(work: Awaitable[Any]) -> float:
    """Return the milliseconds of CPU time of work in this process and its children, without the look at these."""
    before, began = children_s(), time.process_time()
    await work
    own = time.process_time() - began
    return 1000 * (own + children_s() - before)


async def play(env: EnvAdapter, item: TaskItem, script: Sequence[str]) -> tuple[float, float]:
    """Play a demonstration, and return the milliseconds of CPU time of its reset and of its turns."""

    async def act() -> None:
        for action in script:
            await env.step(action)

    reset, turns = await cpu_ms(env.reset(item)), await cpu_ms(act())
    await env.close()
    return reset, turns


async def measure(name: str, episodes: int) -> Times:
    """Return the times of an environment over demonstrations that are spread over its training tasks."""
    env = make_env(name)
    items = env.tasks("train")
    scripts = [(item, actions(env, item)) for item in (items[at] for at in spread(items, episodes))]
    played = [(item, script) for item, script in scripts if script]
    await play(env.new_session(), *played[0])
    spent = [await play(env.new_session(), item, script) for item, script in played]
    turns = [len(script) for _, script in played]
    return Times(sum(reset for reset, _ in spent) / len(spent), sum(ms for _, ms in spent) / sum(turns), turns)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print a table; None stands for the arguments of the process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(NAMES), help="environments with demonstrations")
    parser.add_argument("--episodes", type=int, default=50, help="demonstrations of each (default 50)")
    options, console = parser.parse_args(arguments), Console(width=120)
    table = Table("environment", "CPU of a reset", "CPU of a turn", "turns: median", "10 % and 90 %")
    with embedded_corpus() if "deepsearch" in options.names else nullcontext():
        for name in options.names:
            if lacking := [one for one in load_adapter(name).requirements() if not one.present]:
                console.print(f"{name} is left out; {lacking[0].name} is missing: {lacking[0].install}")
                continue
            times = asyncio.run(measure(name, options.episodes))
            fewest, most = times.tenths
            cells = f"{times.reset_ms:.2f} ms", f"{times.turn_ms:.3f} ms", f"{median(times.turns):.0f}"
            table.add_row(name, *cells, f"{fewest} to {most}")
    console.print(table)


if __name__ == "__main__":
    main()
