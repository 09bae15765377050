"""Benchmark of the rollout: compared with a loop in lock-step and with its longest episode, and without latency.

python -m tests.bench.rollout [--speed 10] [--episodes 64] [--seeds 1 2 3] [--json PATH]

It prints which targets are met and always exits with 0, because speed on a shared machine varies. `--speed` divides
all latencies, which increases the share of the loops' own cost.
"""

import argparse
import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from tests.bench.measure import compare, overheads
from tests.bench.paced import ENV_MEDIAN_S, ENV_SIGMA, MAX_TOKENS, MAX_TURNS, MIN_TOKENS, MIN_TURNS, TOKEN_S
from tests.bench.report import show
from verl_agent.trace.provenance import Provenance


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the arguments; None stands for those of the process."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.rollout", description="Measure the rollout.")
    parser.add_argument("--speed", type=float, default=10.0, help="divide all latencies by this (default 10)")
    parser.add_argument("--episodes", type=int, default=64, help="episodes played at the same time (default 64)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="one comparison each (default 1 2 3)")
    parser.add_argument("--json", type=Path, metavar="PATH", help="file for the numbers and their provenance")
    options = parser.parse_args(arguments)
    if options.speed <= 0:
        parser.error(f"--speed must be > 0, got {options.speed:g}.")
    if options.episodes < 2:
        parser.error(f"--episodes must be >= 2, got {options.episodes}.")
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print the tables, and write the numbers to a file if `--json` is set."""
    options = parse(arguments)
    console = Console()
    load = os.getloadavg()[0]
    with console.status("overhead without latency") as status:
        costs = overheads(options.episodes)
        comparisons = []
        for seed in options.seeds:
            status.update(f"seed {seed}: our loop, lock-step, and the longest episode alone")
            comparisons.append(compare(seed, options.episodes, options.speed))
    targets = show(console, comparisons, costs, speed=options.speed, load=load)
    if options.json:
        numbers = {
            "provenance": asdict(Provenance.collect()),
            "load_average_before": load,
            "latencies_at_speed_1": {
                "turns": [MIN_TURNS, MAX_TURNS],
                "reply_tokens": [MIN_TOKENS, MAX_TOKENS],
                "token_s": TOKEN_S,
                "env_median_s": ENV_MEDIAN_S,
                "env_sigma": ENV_SIGMA,
            },
            "speed": options.speed,
            "episodes": options.episodes,
            "seeds": options.seeds,
            "comparisons": [asdict(comparison) for comparison in comparisons],
            "overheads": [asdict(overhead) for overhead in costs],
            "targets": [{**asdict(target), "met": target.met} for target in targets],
        }
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(numbers, indent=2) + "\n", encoding="utf-8")
        console.print(f"Numbers: {options.json}")


if __name__ == "__main__":
    main()
