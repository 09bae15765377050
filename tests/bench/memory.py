"""Memory of a command and all its processes over time: `python -m tests.bench.memory [--json PATH] COMMAND ...`.

The memory of a process is its proportional set size (PSS): pages that n processes share count 1/n for each of them, so
that the sum over all processes counts every page once. Ray's processes leave the tree of their parents, so the command
and everything that it starts carry an environment variable, by which they are found.
"""

import argparse
import json
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from uuid import uuid4

import psutil
from rich.console import Console
from rich.table import Table

MARK = "VERL_AGENT_MEMORY_MARK"
"""Environment variable of the processes of one measurement."""
KINDS = ("Pss_Anon", "Pss_File", "Pss_Shmem")
"""Parts of the PSS in the kernel's `smaps_rollup`: private memory, mapped files, shared memory."""
INTERVAL_S = 1.0


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """Memory of one process.

    Attributes:
        name: title of the process, or the start of its command line.
        gb: memory in GB.
        parts: GB by entry of `KINDS`.
    """

    name: str
    gb: float
    parts: dict[str, float]


@dataclass(slots=True)
class MemoryUsage:
    """Memory of a command.

    Attributes:
        peak: processes at the time at which the sum of their memory was largest.
        series: seconds since the start and the sum in GB.
        largest: largest memory of a process of each name in GB, at any time.
    """

    peak: list[ProcessMemory] = field(default_factory=list)
    series: list[tuple[float, float]] = field(default_factory=list)
    largest: dict[str, float] = field(default_factory=dict)

    @property
    def peak_gb(self) -> float:
        """Largest sum over all processes in GB."""
        return total_gb(self.peak)

    def add(self, seconds: float, processes: list[ProcessMemory]) -> None:
        self.series.append((round(seconds, 1), round(total_gb(processes), 3)))
        for process in processes:
            self.largest[process.name] = max(process.gb, self.largest.get(process.name, 0.0))
        if total_gb(processes) > self.peak_gb:
            self.peak = processes


def total_gb(processes: Sequence[ProcessMemory]) -> float:
    """Return the sum of the memory of processes in GB."""
    return sum(process.gb for process in processes)


def marked_processes(mark: str) -> Iterator[psutil.Process]:
    """Yield the processes whose environment contains `MARK` with this value, and their children.

    vLLM writes the title of a process over its environment, so its processes are found as children.
    """
    wanted, found = f"{MARK}={mark}".encode(), set[int]()
    for process in psutil.process_iter():  # in the order of process ids, so that parents mostly come first
        try:
            marked = wanted in (Path("/proc") / str(process.pid) / "environ").read_bytes().split(b"\0")
            if not marked and process.ppid() not in found:
                continue
        except (psutil.Error, OSError):  # it has ended
            continue
        found.add(process.pid)
        yield process


def memory_of(processes: Iterable[psutil.Process]) -> Iterator[ProcessMemory]:
    """Yield the memory of each process that has not ended."""
    for process in processes:
        try:
            lines = (Path("/proc") / str(process.pid) / "smaps_rollup").read_text().splitlines()[1:]
            words = process.cmdline()
        except (psutil.Error, OSError):
            continue
        kib = dict(line.split()[:2] for line in lines)
        parts = {kind: int(kib[f"{kind}:"]) * 1024 / 1e9 for kind in KINDS if f"{kind}:" in kib}
        yield ProcessMemory(title(words), int(kib.get("Pss:", 0)) * 1024 / 1e9, parts)


def title(words: Sequence[str]) -> str:
    """Return a short name of a process with this command line."""
    if len(words) > 2 and words[1] == "-m":
        return words[2]
    return " ".join(Path(word).name for word in words[:2])[:40].strip() or "?"


def measure_memory(
    command: Sequence[str], interval_s: float = INTERVAL_S, limit_s: float = float("inf")
) -> tuple[MemoryUsage, int]:
    """Run a command to its end, or interrupt it.

    Args:
        command: program and arguments.
        interval_s: time between two samples in seconds.
        limit_s: seconds after which the command receives SIGINT, as from Ctrl-C.

    Returns:
        Memory of the command's processes, and its exit status.
    """
    mark, usage, started = uuid4().hex, MemoryUsage(), time.monotonic()
    with subprocess.Popen(command, env={**os.environ, MARK: mark}) as process:
        while process.poll() is None:
            seconds = time.monotonic() - started
            usage.add(seconds, list(memory_of(marked_processes(mark))))
            if seconds > limit_s:
                limit_s = float("inf")
                process.send_signal(signal.SIGINT)
            time.sleep(interval_s)
    return usage, process.returncode


def memory_table(usage: MemoryUsage) -> Table:
    """Return a table of the processes at the peak; equal names in one row."""
    made = Table("process", "number", "GB", "private", "files", "shared", "largest", title="GB of memory at the peak")
    numbers = Counter(process.name for process in usage.peak)
    for name in sorted(numbers, key=lambda name: -sum(one.gb for one in usage.peak if one.name == name)):
        same = [process for process in usage.peak if process.name == name]
        parts = [f"{sum(process.parts.get(kind, 0.0) for process in same):.2f}" for kind in KINDS]
        made.add_row(name, str(numbers[name]), f"{total_gb(same):.2f}", *parts, f"{usage.largest[name]:.2f}")
    made.add_row("all", str(len(usage.peak)), f"{usage.peak_gb:.2f}", *[""] * 4)
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command, print the table, write the samples to a file if `--json` is set; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.memory", description="Measure a command's peak memory."
    )
    parser.add_argument("--interval", type=float, default=INTERVAL_S, help="seconds between two samples (default 1)")
    parser.add_argument("--limit", type=float, default=float("inf"), help="seconds after which the command is stopped")
    parser.add_argument("--json", type=Path, metavar="PATH", help="file for the samples")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="program and its arguments")
    options = parser.parse_args(arguments)
    if not options.command or not options.interval > 0:
        parser.error("a command is required, and --interval must be above 0.")
    usage, status = measure_memory(options.command, options.interval, options.limit)
    Console().print(memory_table(usage))
    if options.json:
        options.json.write_text(json.dumps(asdict(usage)) + "\n", encoding="utf-8")
    return status


if __name__ == "__main__":
    raise SystemExit(main())
