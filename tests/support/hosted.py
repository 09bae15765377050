"""Environments whose actions disturb their host; importable by host processes."""

import asyncio
import os
import re
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from typing import ClassVar

from tests.support.escapes import spawn
from verl_agent.envs.base import EnvAdapter
from verl_agent.types import Message, StepResult, TaskItem

ITEM = TaskItem("obedient", "1")


class Obedient(EnvAdapter):
    """Environment that carries out `<verb> [argument]`; the answer to an unknown verb is the number of the turn."""

    memory: ClassVar[list[bytes]] = []

    def __init__(self, note: str = "") -> None:
        self.note, self.turns = note, 0

    def tasks(self, split: str) -> Sequence[TaskItem]:
        return [ITEM]

    async def reset(self, item: TaskItem) -> list[Message]:
        self.turns = 0
        return [{"role": "user", "content": "Go on."}]

    async def step(self, action: str) -> StepResult:
        self.turns += 1
        verb, _, argument = action.partition(" ")
        act = getattr(self, f"do_{verb}", None)
        found = await act(argument) if act else self.turns
        return StepResult(str(found), terminated=verb == "end")

    async def close(self) -> None:
        if self.note:
            with open(self.note, "a", encoding="utf-8") as file:
                file.write("closed\n")

    async def do_sleep(self, seconds: str) -> None:
        await asyncio.sleep(float(seconds))

    async def do_block(self, seconds: str) -> None:
        time.sleep(float(seconds))

    async def do_raise(self, _: str) -> None:
        raise KeyError("observation")

    async def do_exit(self, _: str) -> None:
        sys.exit(3)

    async def do_die(self, _: str) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    async def do_freeze(self, _: str) -> None:
        re.match(r"(a+)+$", "a" * 64 + "b")  # takes years and blocks all threads

    async def do_pid(self, _: str) -> int:
        return os.getpid()

    async def do_thread(self, _: str) -> str:
        return threading.current_thread().name

    async def do_spawn(self, way: str) -> int:
        with tempfile.TemporaryDirectory() as folder:
            return spawn(way or "child", f"{folder}/pid")

    async def do_grow(self, mebibytes: str) -> None:
        self.memory.append(os.urandom(2**20) * int(mebibytes))

    async def do_write(self, length: str) -> str:
        return "x" * int(length)


class Patient(Obedient):
    """Environment whose steps wait, in the event loop or blocking their thread."""

    def __init__(self, seconds: float = 1.0, blocks: bool = False) -> None:
        super().__init__()
        self.seconds, self.blocks = seconds, blocks

    async def step(self, action: str) -> StepResult:
        await (self.do_block if self.blocks else self.do_sleep)(str(self.seconds))
        return StepResult("done")
