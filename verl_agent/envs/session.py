"""Run an adapter in a thread of its own, so that nothing it does can stop the event loop.

A call that never returns keeps its thread; the thread is a daemon, is left behind, and is counted.
"""

import asyncio
import itertools
import logging
import threading
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

from verl_agent.envs.base import EnvAdapter
from verl_agent.types import Message, StepResult, TaskItem

logger = logging.getLogger(__name__)
T = TypeVar("T")
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
        """Close the adapter and end the thread; a thread that is stuck ends when its call returns."""
        if self._loop.is_closed():
            return
        try:
            if self._env is not None:
                await self._call(lambda env: env.close())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)

    async def _call(self, start: Callable[[EnvAdapter], Coroutine[Any, Any, T]]) -> T:
        async def in_thread() -> T:
            if self._env is None:
                self._env = self._adapter(**self._options)
            return await start(self._env)

        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(in_thread(), self._loop))

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.close()
