"""An event loop in which sessions are called, mostly in a thread of its own, and one such call seen from outside."""

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Generic, TypeVar

T = TypeVar("T")
_numbers = itertools.count(1)


class EventLoopThread:
    """A daemon thread with an event loop; it lives until `end()` and until what blocks it returns."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=f"env-{next(_numbers)}", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Let the thread end when it comes back to its loop; works from any thread, and twice."""
        with suppress(RuntimeError):  # it has ended
            self.loop.call_soon_threadsafe(self.loop.stop)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        left = asyncio.all_tasks(self.loop)
        for task in left:
            task.cancel()
        self.loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        self.loop.close()


class InlineLoop(EventLoopThread):
    """The loop that makes the calls, without any thread: for what computes briefly, which a thread would slow down."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()

    def end(self) -> None:
        """The loop goes on: it is not the lane's."""


class Call(Generic[T]):
    """A coroutine that runs in a lane while the loop that made the call goes on.

    Args:
        lane: where it runs.
        what: its name in errors.
        limit_s: seconds that it may take once it has begun.

    Attributes:
        answer: what it returns or raises, in the loop of the caller.
        began_at: monotonic second at which its turn came, None while it waits.
        ended_at: monotonic second at which `end()` gave it up, None if it was not.
        over: whether its coroutine has left the lane.
    """

    def __init__(self, lane: EventLoopThread, what: str, limit_s: float) -> None:
        self.lane, self.what, self.limit_s = lane, what, limit_s
        self.began_at: float | None = None
        self.ended_at: float | None = None
        self.over = False
        self._home = asyncio.get_running_loop()
        self._at_home = lane.loop is self._home
        self.answer: asyncio.Future[T] = self._home.create_future()
        self.answer.add_done_callback(_retrieve)
        self._task: asyncio.Task[None] | None = None

    def start(self, work: Callable[[], Coroutine[Any, Any, T]]) -> None:
        """Send the work to the lane."""
        if self._at_home:
            self._in_lane(work)
        else:
            self.lane.loop.call_soon_threadsafe(self._in_lane, work)

    def end(self, error: Exception) -> None:
        """Give up: the caller gets `error` now; the coroutine is cancelled as soon as its thread lets it."""
        if self.ended_at is not None or self.over:
            return
        self.ended_at = time.monotonic()
        if not self.answer.done():
            self.answer.set_exception(error)
        with suppress(RuntimeError):  # the lane has ended
            self.lane.loop.call_soon_threadsafe(self._cancel_in_lane)

    def overdue(self, now: float) -> bool:
        """Whether it has begun, is still waited for, and takes longer than it may."""
        return self.ended_at is None and self.began_at is not None and now - self.began_at > self.limit_s

    def holds_thread(self, now: float, grace_s: float) -> bool:
        """Whether it was given up at least `grace_s` ago and keeps its thread all the same."""
        return (
            self.ended_at is not None and self.began_at is not None and not self.over and now - self.ended_at > grace_s
        )

    def _in_lane(self, work: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._task = self.lane.loop.create_task(self._run(work))
        self._task.add_done_callback(self._leave)

    def _cancel_in_lane(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> None:
        """Answer at once: callbacks of a task run only after all others that are ready, and those may block."""
        try:
            result = await work()
        except Exception as error:
            self.over = True
            self._tell(self.answer.set_exception, error)
        else:
            self.over = True
            self._tell(self.answer.set_result, result)

    def _leave(self, task: asyncio.Task[None]) -> None:
        """It may be cancelled, even before it has begun."""
        self.over = True
        if task.cancelled():
            self._tell(self.answer.cancel)

    def _tell(self, settle: Callable[..., Any], *found: Any) -> None:
        def settle_at_home() -> None:
            if not self.answer.done():
                settle(*found)

        if self._at_home:
            return settle_at_home()
        with suppress(RuntimeError):  # nobody is there any more to be told
            self._home.call_soon_threadsafe(settle_at_home)


def _retrieve(future: asyncio.Future[Any]) -> None:
    """Mark an exception as seen: whoever gave up waiting for it does not want it logged."""
    if not future.cancelled():
        future.exception()
