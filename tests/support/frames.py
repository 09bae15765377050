"""Frames between the episode loop and an adapter, counted while one action is carried out.

A frame is a coroutine that waits for the next one: in the event loop of the episode, in that of a host's process, and
in the thread of the session. The frame of the loop and that of the adapter are not counted.
"""

import asyncio
import inspect
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

from tests.support.fakes import ITEM, ScriptedPolicy, plain
from verl_agent.envs.base import EnvAdapter
from verl_agent.envs.hosts.host import CallLimits
from verl_agent.envs.hosts.slot import PoolLimits
from verl_agent.envs.session import PooledEnv, Session
from verl_agent.rollout.episode import EpisodeLimits, play_episode
from verl_agent.types import Message, StepResult, TaskItem

LOOP, HOST = "_play_turn", "_answer"
"""Functions in which the chains of the loop and of a host's process begin."""


def waiting(*begins: str) -> list[str]:
    """Return the frames of this process's tasks that wait for a step, the outermost first."""
    chains = []
    for task in asyncio.tasks._all_tasks:  # type: ignore[attr-defined]  # those of all event loops
        names, found = list[str](), task.get_coro()
        while inspect.iscoroutine(found):
            names.append(found.cr_code.co_qualname)
            found = found.cr_await
        for begin in begins:
            if begin in names and any("step" in name or "_call" in name for name in names):
                at = names.index(begin)
                chains.append(names[at + (begin == LOOP) :])
    return max(chains, key=len, default=[])


def running(frame: FrameType | None) -> Iterator[str]:
    """Yield the coroutines of this package that run in this thread, the innermost first."""
    while frame is not None:
        if "verl_agent" in frame.f_code.co_filename and frame.f_code.co_flags & inspect.CO_COROUTINE:
            yield frame.f_code.co_qualname
        frame = frame.f_back


class Counting(EnvAdapter):
    """Environment that answers with the frames above it in its own process."""

    def tasks(self, split: str) -> list[TaskItem]:
        return [ITEM]

    async def reset(self, item: TaskItem) -> list[Message]:
        return [{"role": "user", "content": "Begin."}]

    async def step(self, action: str) -> StepResult:
        own = list(running(sys._getframe(1)))[::-1]
        if LOOP in own:  # there is no thread
            return StepResult(" ".join(own[own.index(LOOP) + 1 :]))
        while not (outer := waiting(LOOP, HOST)):  # it may not wait yet
            await asyncio.sleep(0.001)
        return StepResult(" ".join([*outer, *own]))


def frames(new_pool: Any) -> list[str]:
    """Return the frames between loop and adapter, the outermost first.

    Args:
        new_pool: `inline_pool` or `process_pool`; None for the adapter itself.
    """

    async def play() -> list[str]:
        pool = new_pool and new_pool(Counting(), CallLimits(), PoolLimits(count=1))
        session: Session = PooledEnv(Counting(), pool) if pool else Counting()
        seen: list[str] = []

        async def watch() -> None:
            while True:
                seen[:] = max(seen, waiting(LOOP), key=len)
                await asyncio.sleep(0)

        watcher = asyncio.create_task(watch())
        episode = await play_episode(ITEM, session, plain(), ScriptedPolicy(["a"]), EpisodeLimits(1, None))
        watcher.cancel()
        if pool:
            await pool.shutdown()
        assert episode.valid, episode.error
        told = episode.messages[-1]["content"].split()
        return told if told[: len(seen)] == seen else [*seen, *told]

    return asyncio.run(play())
