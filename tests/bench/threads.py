"""Benchmark of how OpenMP's threads wait between matrix products: alone, and beside processes that use a core each.

python -m tests.bench.threads [--busy 0 1 3] [--repeats 3] [--seconds 60] [--json PATH]

Each measurement is a new process of all cores, which multiplies the shapes of SmolLM2's layers. The table has the
seconds of each policy divided by those of the product's own one (`SPIN_ROUNDS`), from the same round of measurements.
A process that does not end in time is ended, and its seconds are a lower bound.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from verl_agent.platform.worker_environment import SPIN_ROUNDS

OWN = f"GOMP_SPINCOUNT={SPIN_ROUNDS}"
POLICIES = ("default", "OMP_WAIT_POLICY=passive", "GOMP_SPINCOUNT=100", OWN, "GOMP_SPINCOUNT=10000")
PRODUCTS = """
import time, torch
x, up, down = torch.randn(64, 576), torch.randn(576, 1536), torch.randn(1536, 576)
def layers():
    for _ in range(300):
        torch.nn.functional.silu(x @ up) @ down
layers()
began = time.perf_counter()
layers()
print(time.perf_counter() - began)
"""
BUSY = "while True: pass"


def seconds_of(policy: str, most_s: float) -> float:
    """Return the seconds of 600 products under a policy; `most_s` if they did not end in time."""
    variables = {key: value for key, value in os.environ.items() if key not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    if policy != "default":
        name, _, value = policy.partition("=")
        variables[name] = value
    command = [sys.executable, "-c", PRODUCTS]
    try:
        return float(subprocess.run(command, env=variables, capture_output=True, check=True, timeout=most_s).stdout)
    except subprocess.TimeoutExpired:
        return most_s


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


def measure(processes: int, repeats: int, most_s: float) -> dict[str, list[float]]:
    """Return the seconds of each policy in each round beside a number of busy processes."""
    seconds: dict[str, list[float]] = {policy: [] for policy in POLICIES}
    with busy(processes):
        for _ in range(repeats):
            for policy in POLICIES:
                seconds[policy].append(seconds_of(policy, most_s))
    return seconds


def show(measured: dict[int, dict[str, list[float]]]) -> Table:
    """Return a table of the median ratio of each policy to the own one, with the median seconds."""
    table = Table("policy", *(f"beside {processes}" if processes else "alone" for processes in measured))
    for policy in POLICIES:
        cells = []
        for seconds in measured.values():
            ratios = [own / base for own, base in zip(seconds[policy], seconds[OWN], strict=True)]
            cells.append(f"{median(ratios):.2f} ({median(seconds[policy]) * 1000:.0f} ms)")
        table.add_row(policy, *cells)
    return table


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--busy", type=int, nargs="+", default=[0, 1, 3])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args(arguments)
    measured = {processes: measure(processes, asked.repeats, asked.seconds) for processes in asked.busy}
    Console().print(show(measured))
    if asked.json is not None:
        asked.json.write_text(json.dumps(measured, indent=1))


if __name__ == "__main__":
    main()
