"""Benchmark of how OpenMP's threads wait between matrix products: alone, and beside processes that use a core each.

python -m tests.bench.threads [--busy 0 1 3] [--repeats 3] [--seconds 30] [--json PATH]

Each measurement is a new process of all cores, which multiplies the shapes of SmolLM2's layers in the dtype of a run on
this machine. The table has the seconds of each policy divided by those of the product's own one (`SPIN_ROUNDS`), from
the same round of measurements. The last row is the own policy at nice 15, Ray's default for its workers. A process
that has multiplied for `--seconds` stops: `>` marks a cell with such a lower bound. Rounds in which the own policy did
not end in time have no ratio.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from verl_agent.config.search_path import cpu_dtype
from verl_agent.platform.worker_environment import SPIN_ROUNDS

OWN = f"GOMP_SPINCOUNT={SPIN_ROUNDS}"
NICE = 15
"""Niceness that Ray gives its workers, unless `RAY_worker_niceness` is set."""
POLICIES = (
    "default",
    "OMP_WAIT_POLICY=passive",
    "GOMP_SPINCOUNT=100",
    OWN,
    "GOMP_SPINCOUNT=10000",
    f"{OWN}, nice {NICE}",
)
PRODUCTS = """
import os, sys, time, torch
most_s, dtype = float(sys.argv[1]), getattr(torch, sys.argv[2])
os.nice(int(sys.argv[3]))  # before there are threads of products, which inherit it
x, up, down = (torch.randn(*shape).to(dtype) for shape in ((64, 576), (576, 1536), (1536, 576)))
def layers(count):
    began = time.perf_counter()
    for _ in range(count):
        torch.nn.functional.silu(x @ up) @ down
        if time.perf_counter() - began >= most_s:
            break
    return time.perf_counter() - began
first_s = layers(30)
print(layers(300) if first_s < most_s else first_s)
"""
BUSY = "while True: pass"

Seconds = Mapping[str, Sequence[float]]
"""Seconds of each policy in each round."""


def settings_of(policy: str, environment: Mapping[str, str]) -> tuple[dict[str, str], int]:
    """Return environment variables and niceness of a policy such as `GOMP_SPINCOUNT=100, nice 15`.

    Args:
        environment: other variables; a policy in them is left out.
    """
    chosen, _, nice = policy.partition(", nice ")
    variables = {key: value for key, value in environment.items() if key not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    if chosen != "default":
        name, _, value = chosen.partition("=")
        variables[name] = value
    return variables, int(nice or 0)


def seconds_of(policy: str, most_s: float) -> float:
    """Return the seconds of 600 products under a policy; at least `most_s` if they did not end in time."""
    variables, nice = settings_of(policy, os.environ)
    command = [sys.executable, "-c", PRODUCTS, str(most_s), cpu_dtype(), str(nice)]
    return float(subprocess.run(command, env=variables, capture_output=True, check=True).stdout)


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """Keep a number of processes busy while the block runs."""
    with ExitStack() as stack:
        running = [stack.enter_context(subprocess.Popen([sys.executable, "-c", BUSY])) for _ in range(processes)]
        try:
            yield
        finally:
            for process in running:
                process.kill()


def measure(processes: int, repeats: int, most_s: float) -> Seconds:
    """Return the seconds of each policy in each round beside a number of busy processes."""
    seconds: dict[str, list[float]] = {policy: [] for policy in POLICIES}
    with busy(processes):
        for _ in range(repeats):
            for policy in POLICIES:
                seconds[policy].append(seconds_of(policy, most_s))
    return seconds


def cell(policy: str, seconds: Seconds, most_s: float) -> str:
    """Return the median ratio of a policy to the own one, with its median seconds.

    `>` marks a number that is a lower bound, because a process did not end in time.
    """
    bound = ">" if max(seconds[policy]) >= most_s else ""
    rounds = zip(seconds[policy], seconds[OWN], strict=True)
    ratios = [found / own for found, own in rounds if own < most_s]
    ratio = f"{bound}{median(ratios):.2f}" if ratios else "no ratio"
    return f"{ratio} ({bound}{median(seconds[policy]) * 1000:.0f} ms)"


def show(measured: Mapping[int, Seconds], most_s: float) -> Table:
    """Return a table of the policies."""
    table = Table("policy", *(f"beside {processes}" if processes else "alone" for processes in measured))
    for policy in POLICIES:
        table.add_row(policy, *(cell(policy, seconds, most_s) for seconds in measured.values()))
    return table


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--busy", type=int, nargs="+", default=[0, 1, 3])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=30.0, help="most seconds of a measurement (default 30)")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args(arguments)
    measured = {processes: measure(processes, asked.repeats, asked.seconds) for processes in asked.busy}
    console = Console()
    console.print(f"600 products of {cpu_dtype()}, {len(os.sched_getaffinity(0))} cores")
    console.print(show(measured, asked.seconds))
    if asked.json is not None:
        numbers = {"dtype": cpu_dtype(), "most_s": asked.seconds, "seconds": measured}
        asked.json.write_text(json.dumps(numbers, indent=1))


if __name__ == "__main__":
    main()
