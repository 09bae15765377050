"""Runtimes of sandboxes that this machine has, for tests, and processes that a sandbox may have left."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import psutil
import pytest

from env_adapters.terminal.adapter import Terminal
from env_adapters.terminal.runtimes import RUNTIMES, make_runtime
from env_adapters.terminal.sandbox import Files
from verl_agent.types import StepResult, TaskItem

IMAGE = "python:3.11-slim"


@cache
def problem(name: str) -> str:
    """Return why this machine has no sandboxes of a runtime, or ""."""
    return make_runtime(name, IMAGE).problem()


def need(name: str = "bubblewrap") -> None:
    """Skip the test if this machine has no sandboxes of a runtime."""
    if problem(name):
        pytest.skip(f"{name}: {problem(name)}")


ALL_RUNTIMES = pytest.mark.parametrize("runtime", RUNTIMES)


def play(env: Terminal, item: TaskItem | None, actions: Iterable[str]) -> Sequence[StepResult]:
    """Return the answers to actions in a fresh session; None is the first task."""

    async def episode() -> list[StepResult]:
        session = env.new_session()
        await session.reset(item or env.tasks(env.splits[0])[0])
        try:
            return [await session.step(action) for action in actions]
        finally:
            await session.close()

    return asyncio.run(episode())


def left(mark: str) -> list[str]:
    """Return the command lines of processes of this machine that have a word."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        line = " ".join(process.info["cmdline"] or ())
        if mark in line and "pytest" not in line:
            found.append(line)
    return found


def as_files(contents: Mapping[str, Any]) -> Files:
    """Return texts as files."""
    return {name: (0o644, str(text).encode()) for name, text in contents.items()}
