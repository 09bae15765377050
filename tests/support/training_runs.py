"""Training runs in processes of their own: start, wait for a checkpoint, find and end leftover processes."""

import os
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import psutil

from verl_agent.trace.record import EpisodeRecord

REPOSITORY = Path(__file__).parents[2]
MARK = "VERL_AGENT_TEST_RUN"
"""Environment variable that all processes of a run under test inherit."""


def command_line(command: str, folder: Path, recipe: str, *overrides: str) -> list[str]:
    """Return the command line of a `verl_agent.commands` module with a recipe.

    Args:
        command: name of the module, such as `train`.
        folder: folder of the recipe.
        recipe: name of the recipe's file without its suffix.
        overrides: Hydra overrides.
    """
    module = f"verl_agent.commands.{command}"
    return [sys.executable, "-m", module, "--config-dir", str(folder), "--config-name", recipe, *overrides]


def run_environment(mark: Path, *packages: Path) -> dict[str, str]:
    """Return the environment variables of a run on the CPU.

    Args:
        mark: value of `MARK`.
        packages: further folders from which the run imports packages.
    """
    path = os.pathsep.join(str(folder) for folder in (*packages, REPOSITORY))
    return {**os.environ, MARK: str(mark), "PYTHONPATH": path, "VERL_PLATFORM": "cpu"}


def last_step(folder: Path) -> int:
    """Return the step of the latest complete checkpoint, 0 before the first one."""
    tracker = folder / "latest_checkpointed_iteration.txt"
    return int(tracker.read_text() or 0) if tracker.is_file() else 0


def marked_processes(mark: Path) -> list[psutil.Process]:
    """Return the running processes of a run."""
    marked = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == str(mark) and process.status() != psutil.STATUS_ZOMBIE:
                marked.append(process)
        except (psutil.AccessDenied, psutil.NoSuchProcess):
            continue
    return marked


def wait_for_end(mark: Path, timeout_s: float = 60) -> list[str]:
    """Wait until all processes of a run have ended; kill the others and return their command lines."""
    deadline = time.monotonic() + timeout_s
    while marked_processes(mark) and time.monotonic() < deadline:
        time.sleep(1)
    remaining = marked_processes(mark)
    lines = [" ".join(process.cmdline())[:200] for process in remaining]
    for process in remaining:
        process.kill()
    return lines


def tasks_by_step(records: Sequence[EpisodeRecord]) -> dict[int, set[str]]:
    """Return the ids of the tasks that were played in each step."""
    tasks = defaultdict(set)
    for record in records:
        tasks[record["step"]].add(record["task"])
    return dict(tasks)


def uninterrupted_tasks(ids: list[str], batch_size: int, steps: int) -> dict[int, set[str]]:
    """Return the ids of the tasks of each step in a run without interruption, with `data.seed=1`."""
    from torch import Generator
    from torchdata.stateful_dataloader import StatefulDataLoader
    from torchdata.stateful_dataloader.sampler import RandomSampler

    order = RandomSampler(ids, generator=Generator().manual_seed(1))
    batches = iter(StatefulDataLoader(ids, batch_size=batch_size, sampler=order, drop_last=True))
    return {step: set(next(batches)) for step in range(1, steps + 1)}
