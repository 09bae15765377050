"""Cost of an episode outside of the model: `python -m tests.bench.scale [FOLDER] [--episodes 256 1024 4096]`.

The real trainer trains a tiny model on `tests.bench.waiting` without latency: dataset, agent loop, hosts,
TransferQueue, advantages, update, records. The first step warms up. In the second one, the CPU time of each process is
divided by the episodes of the step. Processes of the model (engine and trainer) mean nothing for other models.

`--turns` plays episodes that all have so many turns (`tests.bench.endless`). Two runs of different lengths give the
cost of an episode and that of a turn.

`--instant` is the load of 4,096 episodes of 30 turns, all of them in an environment at once. The engine answers at once
within the agent-loop worker (`tests.bench.instant`), so its server and the requests to it are left out.
"""

import argparse
import json
import os
import subprocess
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from uuid import uuid4

import psutil
from rich.console import Console
from rich.table import Table

from tests.bench.memory import MARK, marked_processes, memory_of, title, total_gb
from tests.bench.partial import WAITING, register
from verl_agent.trace.metrics_log import read_metrics
from verl_agent.trace.provenance import Provenance

SAMPLES, STEPS, TURNS, INSTANT_TURNS = 8, 2, 10, 30
RECIPE = """# Tiny model on an environment without latency, written by tests/bench/scale.py.
defaults: [agent_grpo, cpu, _self_]
env: {{name: waiting, dev_tasks: null, options: {{median_s: 0.0, digits: {digits}}}, hosts: {{count: {hosts}}}}}
agent: {{name: raw}}
horizon: {{max_turns: [{turns}]}}
episode: {{max_tokens_per_turn: 4, on_truncated_turn: play}}
data: {{train_batch_size: {batch}, max_prompt_length: 64, max_response_length: {response}}}
actor_rollout_ref:
  actor: {{use_kl_loss: false, ppo_micro_batch_size_per_gpu: 64, optim: {{lr: 1.0e-4}}}}
  rollout: {{n: {samples}, max_num_seqs: 256}}
trainer: {{total_training_steps: {steps}, save_freq: -1, test_freq: -1, experiment_name: {name}}}
"""
ENDLESS = {"waiting": "tests.bench.endless:EndlessEnv"}
ROUTER = "router_class: tests.bench.instant.INSTANT_ROUTER\n"
MODEL = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "max_position_embeddings": 16384,
}
MOST_DIGITS = 1500
HOSTS, PLACES = 8, 64
"""Hosts of a run, and sessions of a host; both are the defaults of a pool."""
PHASES = ("gen", "adv", "update_actor", "update_weights", "step")


@dataclass(frozen=True, slots=True)
class Sample:
    """State of a run at one time.

    Attributes:
        cpu_s: CPU time of each process since its start, by process id.
        names: name of each process; actors of Ray without the method that runs.
        gb: memory of all processes.
        sent: bytes sent over the loopback interface since the machine started, by all programs.
    """

    cpu_s: Mapping[int, float]
    names: Mapping[int, str]
    gb: float
    sent: int

    @classmethod
    def take(cls, mark: str) -> "Sample":
        """Return the present state of the processes with a mark."""
        processes, cpu_s, names = list(marked_processes(mark)), dict[int, float](), dict[int, str]()
        for process in processes:
            try:
                times, name = process.cpu_times(), title(process.cmdline())
            except psutil.Error:  # it has ended
                continue
            cpu_s[process.pid] = times.user + times.system
            names[process.pid] = name.partition(".")[0] if name.startswith("ray::") else name
        sent = psutil.net_io_counters(pernic=True)["lo"].bytes_sent
        return cls(cpu_s, names, total_gb(list(memory_of(processes))), sent)


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of a step.

    Attributes:
        episodes: number of episodes.
        digits: further tokens of an observation.
        turns: mean turns of an episode.
        cpu_ms: milliseconds of CPU time for an episode, by name of the process.
        seconds: duration of each phase in seconds.
        gb: largest memory of all processes during the step.
        sent_kb: kilobytes sent over the loopback interface for an episode: TransferQueue, requests, Ray.
    """

    episodes: int
    digits: int
    turns: float
    cpu_ms: dict[str, float]
    seconds: dict[str, float]
    gb: float
    sent_kb: float

    @property
    def turn_ms(self) -> float:
        """Milliseconds of the rollout for a turn of any episode."""
        return 1000 * self.seconds["gen"] / (self.episodes * self.turns)


def cost(episodes: int, digits: int, before: Sample, after: Sample, values: Mapping[str, float]) -> Cost:
    """Return the cost of the step between two samples, whose metrics are given; see `Cost`."""
    cpu_s: Counter[str] = Counter()
    for process, seconds in after.cpu_s.items():
        cpu_s[after.names[process]] += seconds - before.cpu_s.get(process, 0.0)
    cpu_ms = {name: 1000 * spent / episodes for name, spent in cpu_s.most_common() if spent > 0.01 * cpu_s.total()}
    sent_kb = (after.sent - before.sent) / episodes / 1000
    seconds = {phase: values[f"timing_s/{phase}"] for phase in PHASES if f"timing_s/{phase}" in values}
    return Cost(episodes, digits, values["episode/turns_mean"], cpu_ms, seconds, after.gb, sent_kb)


def sizes(episodes: int, digits: int, turns: int, instant: bool) -> dict[str, int]:
    """Return the sizes of `RECIPE`; see `measure`."""
    hosts = -(-episodes // PLACES) if instant else HOSTS
    response = turns * (digits + 32)
    counts = {"batch": episodes // SAMPLES, "samples": SAMPLES, "steps": STEPS, "hosts": hosts}
    return counts | {"turns": turns, "digits": digits, "response": response}


def measure(
    folder: Path, episodes: int, digits: int, turns: int | None, instant: bool, overrides: Sequence[str]
) -> Cost:
    """Train two steps of so many episodes, and return the cost of the second.

    Args:
        folder: folder of the model and the run.
        episodes: episodes of a step.
        digits: further tokens of an observation.
        turns: turns of each episode; None for episodes that end by chance after at most `TURNS`.
        instant: True for an engine that answers at once, and a place for each episode.
        overrides: further settings of the run.
    """
    from tests.support.models import write_byte_model  # these import torch
    from tests.support.training_runs import command_line, run_environment, wait_for_end

    model, run, mark = folder / "model", folder / f"{episodes}_{uuid4().hex[:6]}", uuid4().hex
    write_byte_model(model, ["Begin. Go on."], vocabulary=300, **MODEL)
    recipe = RECIPE.format(name=run.name, **sizes(episodes, digits, turns or TURNS, instant))
    (folder / f"{run.name}.yaml").write_text(recipe)
    paths = [f"actor_rollout_ref.model.path={model}", f"trainer.default_local_dir={run}"]
    if instant:
        (folder / "router.yaml").write_text(ROUTER)
        paths.append(f"actor_rollout_ref.rollout.router_config_path={folder / 'router.yaml'}")
    command = command_line("train", folder, run.name, *paths, *overrides)
    adapter = ENDLESS if turns else WAITING
    environment = {**run_environment(folder, register(folder, **adapter)), MARK: mark}
    before, most_gb = None, 0.0
    with subprocess.Popen(command, env=environment) as process:
        while process.poll() is None:
            after, steps = Sample.take(mark), read_metrics(sorted(run.glob("metrics/*.jsonl")))
            if STEPS - 1 in steps:
                before, most_gb = before or after, max(most_gb, after.gb)
            if STEPS in steps:
                break
            time.sleep(0.5)
    wait_for_end(folder)
    if process.returncode or before is None or STEPS not in steps:
        raise SystemExit(f"The run ended with status {process.returncode}. Its log is in {run}/logs.")
    return cost(episodes, digits, before, replace(after, gb=most_gb), steps[STEPS])


def table(costs: Sequence[Cost]) -> Table:
    """Return a table of the costs."""
    made = Table(
        "of an episode",
        *(f"{one.episodes} episodes" for one in costs),
        title=f"CPU time in ms, and seconds; {costs[0].digits} digits",
    )
    for name in dict.fromkeys(name for one in costs for name in one.cpu_ms):
        made.add_row(name, *(f"{one.cpu_ms.get(name, 0.0):.1f} ms" for one in costs))
    made.add_section()
    for phase in costs[0].seconds:
        made.add_row(f"phase {phase}", *(f"{one.seconds[phase]:.1f} s" for one in costs))
    made.add_row("rollout of a turn", *(f"{one.turn_ms:.2f} ms" for one in costs))
    made.add_row("turns of an episode", *(f"{one.turns:.1f}" for one in costs))
    made.add_row("sent over loopback", *(f"{one.sent_kb:.0f} kB" for one in costs))
    made.add_row("memory", *(f"{one.gb:.1f} GB" for one in costs))
    return made


def new_file(text: str) -> Path:
    """Return the path of a file that a benchmark writes at its end, so that a wrong one is refused at its start.

    Raises:
        argparse.ArgumentTypeError: the folder of the file does not exist, or the path is a folder.
    """
    path = Path(text)
    if path.is_dir() or not path.parent.is_dir():
        fault = "is a folder" if path.is_dir() else f"is in {path.parent}, which does not exist"
        raise argparse.ArgumentTypeError(f"{path} {fault}. Allowed: a file in a folder that exists.")
    return path


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the arguments; None stands for those of the process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", default="runs/bench_scale", type=Path)
    parser.add_argument("--episodes", type=int, nargs="+", help=f"multiples of {SAMPLES} (default 256 1024 4096)")
    parser.add_argument("--instant", action="store_true", help="an engine without latency or server")
    parser.add_argument(
        "--turns", type=int, help=f"turns of each episode (default: at most {TURNS}; with --instant {INSTANT_TURNS})"
    )
    parser.add_argument(
        "--digits", type=int, default=0, help=f"further tokens of an observation, at most {MOST_DIGITS} (default 0)"
    )
    parser.add_argument("--json", type=new_file, metavar="PATH", help="file for the numbers and their provenance")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="further setting of the run")
    options = parser.parse_args(arguments)
    options.episodes = options.episodes or ([4096] if options.instant else [256, 1024, 4096])
    if options.turns is None and options.instant:
        options.turns = INSTANT_TURNS
    if options.turns is not None and options.turns < 1:
        parser.error(f"--turns must be >= 1, got {options.turns}.")
    if any(episodes < SAMPLES or episodes % SAMPLES for episodes in options.episodes):
        parser.error(f"--episodes takes multiples of {SAMPLES}, got {' '.join(map(str, options.episodes))}.")
    if not 0 <= options.digits <= MOST_DIGITS:
        parser.error(f"--digits is 0 to {MOST_DIGITS}, got {options.digits}.")
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure each number of episodes, and print a table; see `parse`."""
    options = parse(arguments)
    folder = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("RAY_worker_niceness", "0")
    kind = options.digits, options.turns, options.instant, options.set
    costs = [measure(folder, size, *kind) for size in options.episodes]
    Console().print(table(costs))
    if options.json:
        numbers = {"provenance": asdict(Provenance.collect()), "costs": [asdict(one) for one in costs]}
        options.json.write_text(json.dumps(numbers, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
