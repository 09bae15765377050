"""Runtimes of sandboxes that this machine has, for tests, and processes that a sandbox may have left."""

import asyncio
import base64
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import psutil
import pytest
from typing_extensions import override

from env_adapters.terminal.adapter import Terminal
from env_adapters.terminal.runtimes import BOOT, RUNTIMES, Limits, Runtime, SandboxLayout, Start, make_runtime
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


ANSWERS = {
    "put": {},
    "execute": {"output": base64.b64encode(b"SOME WORDS").decode()},
    "take": {"files": {"reward.txt": [0o644, base64.b64encode(b"1").decode()]}},
}
"""Answers of a driver to the calls of hidden tests that pass."""
DRIVER = """
def main(settings):
    print("{}", flush=True)
    for line in sys.stdin:
        if settings["ends"]: break
        print(json.dumps(settings["answers"][json.loads(line)[0]]), flush=True)
"""


class Dying(Runtime):
    """Runtime without isolation, whose drivers run nothing; its first sandboxes end at their first call."""

    name = "dying"

    def __init__(self, count: int) -> None:
        self.count = count

    @override
    def problem(self) -> str:
        return ""

    @override
    def start(self, limits: Limits, layout: SandboxLayout) -> Start:
        self.count -= 1
        settings = {"ends": self.count >= 0, "answers": ANSWERS}
        return Start([sys.executable, *BOOT], json.dumps((DRIVER, settings)).encode() + b"\n")


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
