"""Extrapolation of a training step to many nodes: `python -m tests.bench.scale_plan [--figure PATH] [--json PATH]`.

`tests.bench.scale_simulation` plays the steps. `MEASURED` has costs from `tests.bench.scale`, `ENVIRONMENTS` those from
`tests.bench.environment_times` and `tests.bench.web_sessions`, on one core at 2.6 GHz. `ASSUMED` describes GPUs that
nobody has measured here. docs/results/scale.md explains the result.
"""

import argparse
import json
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.bench.scale_simulation import (
    PARTIAL,
    PARTS,
    SYNCHRONOUS,
    WAIT_S,
    Costs,
    Environment,
    Machines,
    Mode,
    Step,
    simulate,
)
from verl_agent.trace.provenance import Provenance

MEASURED = Costs(loop_ms=2.9, server_ms=1.4, host_ms=0.44, queue_ms=1.9, driver_ms=3.1)
ENVIRONMENTS = (
    Environment("textcraft", reset_ms=0.14, turn_ms=0.008, latency_s=0.0, sigma=0.0, turns=(2, 20), sessions=256),
    Environment("deepsearch", reset_ms=0.07, turn_ms=0.14, latency_s=0.0, sigma=0.0, turns=(2, 5), sessions=64),
    Environment("scienceworld", reset_ms=48.0, turn_ms=5.8, latency_s=0.0, sigma=0.0, turns=(7, 20), sessions=50),
    Environment("web (Chromium)", reset_ms=270.0, turn_ms=270.0, latency_s=0.3, sigma=1.0, turns=(3, 15), sessions=32),
)
"""Turns from the shortest tenth of the demonstrations to the turn limit of `recipes/*/grpo.yaml`. Latency,
reset and shortest episodes of the web are assumed."""
ASSUMED = Machines()
NODES, EPISODES, HOSTS = (1, 4, 16, 64), (64, 256, 1024, 4096), (1, 8, 64)
OVER_NODES = ("scienceworld", "web (Chromium)")


def is_admitted(environment: Environment, hosts: int, episodes: int, mode: Mode) -> bool:
    """Return False for an asynchronous run with fewer places than episodes in flight, which `check_places` refuses."""
    return not mode.warmup or environment.sessions * hosts >= (1 + mode.warmup) * episodes


def saturation(steps: Sequence[Step]) -> Table:
    """Return a table of the two largest parts of each step on one node, and the setting that moves the first one."""
    headings = ("environment", "episodes", "servers", "mode", "step", "first bottleneck", "then", "setting")
    table = Table(*headings, title="one node: the parts that take most of a step")
    for step in steps:
        first, second, *_ = step.parts
        late = f", waits {step.played.waited_s:.0f} s" if step.played.waited_s > WAIT_S else ""
        shares = [f"{part} {step.saved[part]:.0%}" for part in (first, second)]
        sizes = str(step.episodes), str(step.hosts), step.mode, f"{step.played.seconds:.0f} s{late}"
        table.add_row(step.environment, *sizes, *shares, PARTS[first])
    return table


def over_nodes(steps: Sequence[Step]) -> list[Table]:
    """Return a table for each environment: step in seconds, episodes a second, and the part that takes most."""
    made = []
    for name in dict.fromkeys(step.environment for step in steps):
        table = Table("nodes", *(f"{episodes} episodes" for episodes in EPISODES), title=name)
        for nodes in NODES:
            row = [step for step in steps if (step.environment, step.nodes) == (name, nodes)]
            cells = [
                f"{step.played.seconds:.0f} s, {step.episodes / step.played.seconds:.1f}/s\n"
                f"{step.parts[0]} {step.saved[step.parts[0]]:.0%}, driver {step.saved['driver']:.0%}"
                for step in row
            ]
            table.add_row(str(nodes), *cells)
        made.append(table)
    return made


def draw(steps: Sequence[Step], path: Path) -> None:
    """Draw episodes a second over nodes, a panel for each environment."""
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(step.environment for step in steps))
    figure = Figure(figsize=(4.5 * len(names), 3.6), layout="constrained")
    for axes, name in zip(figure.subplots(1, len(names), sharey=True, squeeze=False)[0], names, strict=True):
        for episodes in EPISODES:
            line = [step for step in steps if (step.environment, step.episodes) == (name, episodes)]
            rates = [episodes / one.played.seconds for one in line]
            axes.plot([one.nodes for one in line], rates, "o-", label=str(episodes))
        axes.set(xscale="log", yscale="log", xlabel="nodes of 8 GPUs", title=name)
        axes.set_xticks(NODES, [str(nodes) for nodes in NODES])
        axes.legend(title="episodes in a step", fontsize="small")
    figure.axes[0].set_ylabel("episodes per second (simulated)")
    figure.savefig(path, dpi=150)


def main(arguments: Sequence[str] | None = None) -> None:
    """Simulate all sizes, print the tables, and write what is asked for; None stands for the process's arguments."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.scale_plan", description="Extrapolate a step.")
    parser.add_argument("--figure", type=Path, metavar="PATH", help="PNG file of the curves")
    parser.add_argument("--json", type=Path, metavar="PATH", help="file for the numbers and their provenance")
    options = parser.parse_args(arguments)
    one_node = [
        (MEASURED, environment, replace(ASSUMED, hosts=hosts), episodes, mode)
        for environment, mode in product(ENVIRONMENTS, (SYNCHRONOUS, PARTIAL))
        for episodes, hosts in product(EPISODES, HOSTS)
        if is_admitted(environment, hosts, episodes, mode)
    ]
    nodes = [
        (MEASURED, environment, replace(ASSUMED, nodes=nodes), episodes, SYNCHRONOUS)
        for environment in ENVIRONMENTS
        if environment.name in OVER_NODES
        for nodes, episodes in product(NODES, EPISODES)
    ]
    with ProcessPoolExecutor() as processes:
        steps = list(processes.map(simulate, *zip(*one_node, *nodes, strict=True)))
    first, others = steps[: len(one_node)], steps[len(one_node) :]
    for table in (saturation(first), *over_nodes(others)):
        Console(width=180).print(table)
    if options.figure:
        draw(others, options.figure)
    if options.json:
        numbers = {"measured": asdict(MEASURED), "assumed": asdict(ASSUMED), "steps": [asdict(one) for one in steps]}
        text = json.dumps({"provenance": asdict(Provenance.collect()), **numbers}, indent=2)
        options.json.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
