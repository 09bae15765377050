"""Benchmark of how OpenMP's threads wait between matrix products: alone, and beside processes that use a core each.

python -m tests.bench.threads [--busy 0 1 3] [--repeats 5] [--seconds 2] [--json PATH]

Each measurement is a new process of all cores, which multiplies the shapes of SmolLM2's layers in the dtype of a run on
this machine for at least `--seconds`. A ratio is the time of a layer under a policy, divided by that under the
product's own one (`SPIN_ROUNDS`) in the same round of measurements. The tables have its median and range over the
rounds, and the median milliseconds of a layer under the own policy and under that of the row. The last row is the own
policy at nice 15, Ray's default for its workers.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from tests.bench.measurements import between, spread
from verl_agent.config.search_path import cpu_dtype
from verl_agent.platform.worker_environment import SPIN_ROUNDS, THREADS, WAITING
from verl_agent.trace.provenance import write_result

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
least_s, dtype = float(sys.argv[1]), getattr(torch, sys.argv[2])
os.nice(int(sys.argv[3]))  # before there are threads of products, which inherit it
x, up, down = (torch.randn(*shape).to(dtype) for shape in ((64, 576), (576, 1536), (1536, 576)))
def layer_s(seconds):
    began, count = time.perf_counter(), 0
    while not count or time.perf_counter() - began < seconds:
        torch.nn.functional.silu(x @ up) @ down
        count += 1
    return (time.perf_counter() - began) / count
layer_s(0.1)
print(layer_s(least_s))
"""
BUSY = "while True: pass"

Seconds = Mapping[str, Sequence[float]]
"""Seconds of a layer under each policy in each round."""


def settings_of(policy: str, environment: Mapping[str, str]) -> tuple[dict[str, str], int]:
    """Return environment variables and niceness of a policy such as `GOMP_SPINCOUNT=100, nice 15`.

    Args:
        environment: other variables; a policy and a number of threads in them are left out.
    """
    chosen, _, nice = policy.partition(", nice ")
    variables = {key: value for key, value in environment.items() if key not in (*WAITING, THREADS)}
    if chosen != "default":
        name, _, value = chosen.partition("=")
        variables[name] = value
    return variables, int(nice or 0)


def seconds_of(policy: str, least_s: float) -> float:
    """Return the seconds of a layer under a policy, measured for at least `least_s`."""
    variables, nice = settings_of(policy, os.environ)
    command = [sys.executable, "-c", PRODUCTS, str(least_s), cpu_dtype(), str(nice)]
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


def measure(processes: int, repeats: int, least_s: float) -> Seconds:
    """Return the seconds of a layer under each policy in each round, beside a number of busy processes."""
    seconds: dict[str, list[float]] = {policy: [] for policy in POLICIES}
    with busy(processes):
        for _ in range(repeats):
            for policy in POLICIES:
                seconds[policy].append(seconds_of(policy, least_s))
    return seconds


def row(policy: str, seconds: Seconds) -> tuple[str, str, str, str]:
    """Return ratio to the own policy, its rounds, and the median milliseconds of a layer: own policy, and this one."""
    ratios = [found / own for found, own in zip(seconds[policy], seconds[OWN], strict=True)]
    return spread(ratios), str(len(ratios)), *(f"{median(seconds[one]) * 1000:.3f}" for one in (OWN, policy))


def show(processes: int, seconds: Seconds) -> Table:
    """Return a table of the policies beside a number of busy processes."""
    columns = "policy", "ratio (range)", "rounds", "own ms", "ms"
    table = Table(*columns, title=f"beside {processes} busy processes" if processes else "alone")
    for policy in POLICIES:
        table.add_row(policy, *row(policy, seconds))
    return table


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the arguments; None stands for those of the process."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.threads", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--busy", type=between(int, 0), nargs="+", default=[0, 1, 3], help="numbers of processes")
    parser.add_argument("--repeats", type=between(int, 1), default=5, help="rounds of all policies (default 5)")
    parser.add_argument(
        "--seconds", type=between(float, 1), default=2.0, help="least seconds of a measurement (default 2)"
    )
    parser.add_argument("--json", type=Path, metavar="PATH", help="file for the numbers and their provenance")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print the table, and write the numbers to a file if `--json` is set."""
    options, console = parse(arguments), Console()
    measured = {processes: measure(processes, options.repeats, options.seconds) for processes in options.busy}
    console.print(
        f"layers of {cpu_dtype()} for at least {options.seconds:g} s each, {len(os.sched_getaffinity(0))} cores",
        highlight=False,
    )
    for processes, seconds in measured.items():
        console.print(show(processes, seconds))
    if options.json:
        write_result(options.json, 2, {"dtype": cpu_dtype(), "least_s": options.seconds, "layer_s": measured})


if __name__ == "__main__":
    main()
