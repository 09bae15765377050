"""Extrapolation of a training step to many nodes: `python -m tests.bench.scale_plan [--figure PATH] [--table PATH]`.

`tests.bench.scale_simulation` plays the steps. `MEASURED` has costs from `tests.bench.scale`, `ENVIRONMENTS` those from
`tests.bench.environment_times` and `tests.bench.web_sessions`, on one core at 2.6 GHz. `ASSUMED` describes GPUs that
nobody has measured here. docs/results/scale.md lists all inputs and explains the result, docs/results/scale.txt has the
whole table.
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

from tests.bench.scale import new_file
from tests.bench.scale_simulation import (
    PARTIAL,
    SYNCHRONOUS,
    WAIT_S,
    Costs,
    Environment,
    Machines,
    Mode,
    Scene,
    Step,
    simulate,
)
from verl_agent.trace.provenance import Provenance

MEASURED = Costs(episode_ms=5.4, loop_ms=1.8, server_ms=1.4, host_ms=0.44, queue_ms=1.9, storage_ms=2.1, driver_ms=3.1)
ENVIRONMENTS = (
    Environment("GuessNumber", 0.004, 0.002, latency_s=0, sigma=0, turns=(2, 4, 5, 5, 6, 6, 6, 6, 7, 7), sessions=64),
    Environment("TextCraft", 0.14, 0.008, latency_s=0, sigma=0, turns=(2, 2, 3, 3, 5, 5, 6, 7, 8, 12), sessions=256),
    Environment("BabyAI", 0.93, 0.11, latency_s=0, sigma=0, turns=(1, 1, 2, 2, 3, 5, 6, 6, 9, 16), sessions=256),
    Environment("Deep Search", 0.07, 0.14, latency_s=0, sigma=0, turns=(2, 2, 2, 3, 3, 3, 3, 3, 3, 3), sessions=64),
    Environment("ScienceWorld", 48, 5.8, latency_s=0, sigma=0, turns=(5, 9, 13, 17, 18, *[20] * 5), sessions=50),
    Environment("Chromium", 270, 270, latency_s=0.3, sigma=1, turns=(3, 3, 4, 4, 4, 4, 5, 6, 8, 10), sessions=32),
)
"""Turns of demonstrations at 5, 15, ..., 95 %, at most the turn limit of `recipes/*/grpo.yaml`; those of Chromium are
the scripts of the embedded sites' tasks. Latency and reset of Chromium are assumed."""
ASSUMED = Machines()
NODES, EPISODES, HOSTS = (1, 4, 16, 64), (64, 256, 1024, 4096), (1, 8, 64)
OVER_NODES, ON_PAGE = ("ScienceWorld", "Chromium"), "ScienceWorld"
HEADINGS = ("environment", "episodes of a step", "servers", "places", "mode", "step", "first part", "then", "setting")


def repeated(mode: Mode, episodes: int) -> Mode:
    """Return a mode whose steps have at least 1,024 episodes in all, so that few drawn lengths do not decide."""
    return replace(mode, steps=max(mode.steps, 1024 // episodes))


def moving(step: Step) -> str:
    """Return the settings that move the first part of a step, with the share of the step that each saves."""
    return ", ".join(f"{name} -{share:.0%}" for name, share in step.moved.items()) or "none"


def row(scene: Scene, step: Step | None) -> list[str]:
    """Return a row of `HEADINGS`; None stands for the step of a run that is refused."""
    environment, hosts = scene.environment.name, str(scene.machines.hosts * scene.machines.nodes)
    sizes = [environment, str(scene.episodes), hosts, str(scene.places), scene.mode.name]
    if not step:
        return [*sizes, "refused: too few places", "", "", "env.hosts.count"]
    late = f", waits {step.played.waited_s:.0f} s" if step.played.waited_s > WAIT_S else ""
    shares = [f"{part} {step.saved[part]:.0%}" for part in step.parts[:2]]
    return [*sizes, f"{step.played.seconds:.0f} s{late}", *shares, moving(step)]


def saturation(rows: Sequence[Sequence[str]]) -> Table:
    """Return a table of the two largest parts of each step on one node, and the settings that move the first one."""
    table = Table(*HEADINGS, title="one node: the parts that take most of a step, and what moves the first one")
    for cells in rows:
        table.add_row(*cells)
    return table


def page_rows(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the table of docs/results/scale.md: for each number of episodes a row, for each number of servers a cell.

    A cell has the first part of a synchronous step of `ON_PAGE` and the setting that moves it most.
    """
    made: dict[str, list[str]] = {}
    for name, episodes, _, _, mode, _, part, _, setting in rows:
        if (name, mode) == (ON_PAGE, SYNCHRONOUS.name):
            made.setdefault(episodes, []).append(f"{part}, {setting.partition(',')[0]}")
    return [f"| {' | '.join([episodes, *cells])} |" for episodes, cells in made.items()]


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


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the arguments; None stands for those of the process."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.scale_plan", description="Extrapolate a step.")
    parser.add_argument("--figure", type=new_file, metavar="PATH", help="PNG file of the curves")
    parser.add_argument("--table", type=new_file, metavar="PATH", help="text file of the tables")
    parser.add_argument("--json", type=new_file, metavar="PATH", help="file for the numbers and their provenance")
    options = parser.parse_args(arguments)
    if options.figure and options.figure.suffix != ".png":
        parser.error(f"argument --figure: {options.figure} does not end with .png. Allowed: a PNG file.")
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    """Simulate all sizes, print the tables, and write the files that are asked for; see `parse`."""
    options = parse(arguments)
    scenes = [
        Scene(MEASURED, environment, replace(ASSUMED, hosts=hosts), episodes, repeated(mode, episodes))
        for environment, mode in product(ENVIRONMENTS, (SYNCHRONOUS, PARTIAL))
        for episodes, hosts in product(EPISODES, HOSTS)
    ]
    one_node = [scene for scene in scenes if scene.is_admitted]
    nodes = [
        Scene(MEASURED, environment, replace(ASSUMED, nodes=nodes), episodes, repeated(SYNCHRONOUS, episodes))
        for environment in ENVIRONMENTS
        if environment.name in OVER_NODES
        for nodes, episodes in product(NODES, EPISODES)
    ]
    with ProcessPoolExecutor() as processes:
        steps = list(processes.map(simulate, [*one_node, *nodes]))
    found, others = dict(zip(one_node, steps, strict=False)), steps[len(one_node) :]
    rows = [row(scene, found.get(scene)) for scene in scenes]
    tables = saturation(rows), *over_nodes(others)
    Console(width=180).print(*tables, *page_rows(rows), sep="\n")
    if options.table:
        with options.table.open("w", encoding="utf-8") as file:
            Console(file=file, width=180).print(*tables)
    if options.figure:
        draw(others, options.figure)
    if options.json:
        numbers = {"measured": asdict(MEASURED), "assumed": asdict(ASSUMED), "steps": [asdict(one) for one in steps]}
        text = json.dumps({"provenance": asdict(Provenance.collect()), **numbers}, indent=2)
        options.json.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
