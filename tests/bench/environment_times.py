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
from statistics import quantiles
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from tests.support.corpus import embedded_corpus
from tests.support.scripts import actions, spread
from verl_agent.envs.base import EnvAdapter
from verl_agent.envs.registry import load_adapter, make_env, registered_envs
from verl_agent.errors import ConfigError
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
    def tenths(self) -> list[int]:
        """Turns of the middle episode of each tenth, which are at 5, 15, ..., 95 %."""
        return tenths(self.turns)


def tenths(turns: Sequence[int]) -> list[int]:
    """Return the turns at 5, 15, ..., 95 % of at least two episodes."""
    return [round(cut) for cut in quantiles(turns, n=20, method="inclusive")[::2]]


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
    """Return the times of an environment over demonstrations that are spread over its training tasks.

    Raises:
        ConfigError: the environment needs options, or has fewer than two demonstrations.
    """
    env = make_env(name)
    items = env.tasks("train")
    scripts = [(item, actions(env, item)) for item in (items[at] for at in spread(items, episodes))]
    played = [(item, script) for item, script in scripts if script]
    if len(played) < 2:
        raise ConfigError(f"{name} has {len(played)} demonstrations of {len(scripts)} tasks. At least 2 are needed.")
    await play(env.new_session(), *played[0])
    spent = [await play(env.new_session(), item, script) for item, script in played]
    turns = [len(script) for _, script in played]
    return Times(sum(reset for reset, _ in spent) / len(spent), sum(ms for _, ms in spent) / sum(turns), turns)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the arguments; None stands for those of the process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=[*NAMES], metavar="NAME", help="environments with demonstrations")
    parser.add_argument("--episodes", type=int, default=50, help="demonstrations of each, at least 2 (default 50)")
    options, known = parser.parse_args(arguments), sorted(registered_envs())
    if options.episodes < 2:
        parser.error(f"--episodes must be >= 2, got {options.episodes}.")
    if unknown := [name for name in options.names if name not in known]:
        parser.error(f"NAME is one of {', '.join(known)}, got {unknown[0]}.")
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print a table; None stands for the arguments of the process."""
    options, console = parse(arguments), Console(width=120)
    table = Table("environment", "CPU of a reset", "CPU of a turn", "turns at 5, 15, ..., 95 %")
    with embedded_corpus() if "deepsearch" in options.names else nullcontext():
        for name in options.names:
            if lacking := [one for one in load_adapter(name).requirements() if not one.present]:
                console.print(f"{name} is left out; {lacking[0].name} is missing: {lacking[0].install}")
                continue
            try:
                times = asyncio.run(measure(name, options.episodes))
            except ConfigError as error:
                raise SystemExit(
                    f"error: NAME is an environment with demonstrations and without required options, such as "
                    f"{', '.join(NAMES)}; got {name}: {error}"
                ) from None
            turns = " ".join(map(str, times.tenths))
            table.add_row(name, f"{times.reset_ms:.3f} ms", f"{times.turn_ms:.3f} ms", turns)
    console.print(table)


if __name__ == "__main__":
    main()
