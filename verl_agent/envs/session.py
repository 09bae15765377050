"""Run an adapter in a thread of its own, so that nothing it does can stop the event loop.

A call that never returns keeps its thread, which is a daemon and does not keep the process.
"""

import asyncio
import itertools
import threading
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

from verl_agent.envs.base import EnvAdapter
from verl_agent.types import Message, StepResult, TaskItem

T = TypeVar("T")
CLOSE_TIMEOUT_S = 60
"""Seconds that an adapter's close may wait in its thread, whether or not somebody still waits for it."""
_numbers = itertools.count(1)


class ThreadedEnv(EnvAdapter):
    """An adapter with the calls of an adapter, made in another thread.

    The adapter itself is created in that thread at the first call, since that may be slow too.

    Args:
        adapter: class of the environment.
        options: its keyword arguments.
    """

    def __init__(self, adapter: type[EnvAdapter], options: Mapping[str, Any]) -> None:
        self.success_reward = adapter.success_reward  # type: ignore[misc]  # per session, from the adapter's class
        self._adapter, self._options = adapter, options
        self._env: EnvAdapter | None = None
        self._closing = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=f"env-{next(_numbers)}", daemon=True)
        self._thread.start()

    @classmethod
    def tasks(cls, split: str) -> list[TaskItem]:
        """A session lists no tasks: its adapter's class does."""
        raise TypeError(f"ask the adapter's class for the tasks of {split!r}, not a session.")

    async def reset(self, item: TaskItem) -> list[Message]:
        """See `EnvAdapter.reset`."""
        return await self._call(lambda env: env.reset(item))

    async def step(self, action: str) -> StepResult:
        """See `EnvAdapter.step`."""
        return await self._call(lambda env: env.step(action))

    async def close(self) -> None:
        """Close the adapter and end the thread; a thread that is stuck does both when its call returns."""
        if self._closing:
            return
        self._closing = True
        closed = asyncio.run_coroutine_threadsafe(self._close_in_thread(), self._loop)
        closed.add_done_callback(lambda _: self._loop.call_soon_threadsafe(self._loop.stop))
        await asyncio.shield(asyncio.wrap_future(closed))

    async def _close_in_thread(self) -> None:
        if self._env is not None:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._env.close()

    async def _call(self, start: Callable[[EnvAdapter], Coroutine[Any, Any, T]]) -> T:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._in_thread(start), self._loop))

    async def _in_thread(self, start: Callable[[EnvAdapter], Coroutine[Any, Any, T]]) -> T:
        if self._env is None:
            self._env = self._adapter(**self._options)
        return await start(self._env)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        left = asyncio.all_tasks(self._loop)
        for task in left:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        self._loop.close()
