"""Extrapolation of a training step to many nodes: `python -m tests.bench.scale_plan [--figure PATH] [--json PATH]`.

A simulation plays the turns of a step one after the other: a turn waits for its agent-loop worker, for the engine and
for a core of the hosts. `MEASURED` has costs from `tests.bench.scale` and the benchmarks of environments, on one core
at 2.6 GHz. `ASSUMED` describes GPUs that nobody has measured here. docs/results/scale.md explains the result.
"""

import argparse
import heapq
import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from verl_agent.trace.provenance import Provenance


@dataclass(frozen=True, slots=True)
class Costs:
    """CPU time of the project's own processes.

    Attributes:
        loop_ms: agent loop, for a turn.
        queue_ms: TransferQueue's controller, for an episode.
        driver_ms: driver, for an episode.
    """

    loop_ms: float
    queue_ms: float
    driver_ms: float


@dataclass(frozen=True, slots=True)
class Environment:
    """An environment.

    Attributes:
        name: name in the table.
        host_ms: CPU time of a turn on a host.
        latency_s: median time of a turn without CPU, for example the network's.
        sigma: deviation of the logarithm of that time.
        turns: smallest and largest number of turns of an episode.
    """

    name: str
    host_ms: float
    latency_s: float
    sigma: float
    turns: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Machines:
    """Nodes, and the model on their GPUs.

    Attributes:
        nodes: number of nodes.
        workers: agent-loop workers on a node.
        gpus: GPUs of a node, each with a replica of the engine.
        cores: cores of a node that hosts may use.
        parameters: parameters of the model.
        token_s: time of the engine for a token of one request.
        request_s: additional time of the engine for a token with each further concurrent request.
        reply_tokens: tokens of a reply.
        episode_tokens: tokens of an episode, as the update sees them.
        update_flops: operations per second of a GPU in the update.
        transfer_s: duration of a weight transfer.
    """

    nodes: int = 1
    workers: int = 8
    gpus: int = 8
    cores: int = 64
    parameters: float = 7e9
    token_s: float = 0.012
    request_s: float = 0.00005
    reply_tokens: int = 150
    episode_tokens: int = 6000
    update_flops: float = 3e14
    transfer_s: float = 5.0


MEASURED = Costs(loop_ms=5.1, queue_ms=4.3, driver_ms=7.0)
ENVIRONMENTS = (
    Environment("text (ScienceWorld)", host_ms=9.0, latency_s=0.0, sigma=0.0, turns=(5, 25)),
    Environment("web (Chromium)", host_ms=270.0, latency_s=0.3, sigma=1.0, turns=(3, 15)),
)
ASSUMED = Machines()
NODES, EPISODES = (1, 4, 16, 64), (32, 256, 1024, 4096)
FREE: Mapping[str, str] = {
    "engine": "the engine's tokens",
    "hosts": "cores of hosts",
    "loop": "agent-loop workers",
    "queue": "TransferQueue's controller",
    "driver": "the driver",
    "update": "the update",
}
"""Parts of a step, by the name of the argument `free` of `step_s`."""


@dataclass(frozen=True, slots=True)
class Step:
    """A simulated step.

    Attributes:
        environment: name of the environment.
        nodes: number of nodes.
        episodes: number of episodes, all of them concurrent.
        rollout_s: duration of the rollout.
        seconds: duration of the step.
        saved: share of the step that each part of `FREE` takes: what it would save if it took no time.
    """

    environment: str
    nodes: int
    episodes: int
    rollout_s: float
    seconds: float
    saved: dict[str, float]

    @property
    def bottleneck(self) -> str:
        """Part that takes the largest share."""
        return max(self.saved, key=self.saved.__getitem__)


def rollout_s(costs: Costs, environment: Environment, machines: Machines, episodes: int, seed: int = 0) -> float:
    """Return the duration of a synchronous rollout in seconds, until the last episode is in the queue."""
    draws = [random.Random(seed * episodes + episode) for episode in range(episodes)]  # equal in any order of turns
    turns = [draw.randint(*environment.turns) for draw in draws]
    workers = [0.0] * (machines.workers * machines.nodes)
    cores = [0.0] * (machines.cores * machines.nodes)
    replicas, running, queue = machines.gpus * machines.nodes, 0, 0.0
    events = [(0.0, episode, False) for episode in range(episodes)]  # time, episode, end of a reply
    while events:
        now, episode, replied = heapq.heappop(events)
        if not replied:
            worker = episode % len(workers)
            workers[worker] = max(now, workers[worker]) + costs.loop_ms / 1000
            running += 1
            token_s = machines.token_s + machines.request_s * running / replicas if machines.token_s else 0.0
            heapq.heappush(events, (workers[worker] + machines.reply_tokens * token_s, episode, True))
            continue
        running -= 1
        ended = max(now, heapq.heappop(cores)) + environment.host_ms / 1000
        heapq.heappush(cores, ended)
        if environment.latency_s:
            ended += draws[episode].lognormvariate(math.log(environment.latency_s), environment.sigma)
        turns[episode] -= 1
        if turns[episode]:
            heapq.heappush(events, (ended, episode, False))
        else:
            queue = max(ended, queue) + costs.queue_ms / 1000
    return queue


def step_s(
    costs: Costs, environment: Environment, machines: Machines, episodes: int, free: str = ""
) -> tuple[float, float]:
    """Return the durations of the rollout and of the whole step in seconds; the part `free` takes no time."""
    if free == "engine":
        machines = replace(machines, token_s=0.0)
    elif free == "hosts":
        environment = replace(environment, host_ms=0.0)
    elif free:
        costs = replace(costs, **{f"{free}_ms": 0.0}) if free != "update" else costs
    rollout = rollout_s(costs, environment, machines, episodes)
    passes = (
        20 * machines.parameters * episodes * machines.episode_tokens
    )  # log-probs of policy and reference, two epochs
    update = 0.0 if free == "update" else passes / (machines.update_flops * machines.gpus * machines.nodes)
    return rollout, rollout + episodes * costs.driver_ms / 1000 + update + machines.transfer_s


def simulate(costs: Costs, environment: Environment, machines: Machines, episodes: int) -> Step:
    """Return a step and what each of its parts takes."""
    rollout, seconds = step_s(costs, environment, machines, episodes)
    saved = {part: 1 - step_s(costs, environment, machines, episodes, part)[1] / seconds for part in FREE}
    return Step(environment.name, machines.nodes, episodes, rollout, seconds, saved)


def tables(steps: Sequence[Step]) -> list[Table]:
    """Return a table for each environment: step in seconds, episodes a second, and the part that takes most."""
    made = []
    for name in dict.fromkeys(step.environment for step in steps):
        table = Table("nodes", *(f"{episodes} episodes" for episodes in EPISODES), title=name)
        for nodes in NODES:
            row = [step for step in steps if (step.environment, step.nodes) == (name, nodes)]
            cells = [
                f"{step.seconds:.0f} s, {step.episodes / step.seconds:.1f}/s\n"
                f"{step.bottleneck} {step.saved[step.bottleneck]:.0%}"
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
            axes.plot([one.nodes for one in line], [episodes / one.seconds for one in line], "o-", label=str(episodes))
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
    steps = [
        simulate(MEASURED, environment, replace(ASSUMED, nodes=nodes), episodes)
        for environment in ENVIRONMENTS
        for nodes in NODES
        for episodes in EPISODES
    ]
    for table in tables(steps):
        Console().print(table)
    if options.figure:
        draw(steps, options.figure)
    if options.json:
        numbers = {"measured": asdict(MEASURED), "assumed": asdict(ASSUMED), "steps": [asdict(one) for one in steps]}
        text = json.dumps({"provenance": asdict(Provenance.collect()), **numbers}, indent=2)
        options.json.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
