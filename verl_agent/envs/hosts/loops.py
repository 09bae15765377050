"""Event loops that run the calls of sessions, and the state of one such call."""

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
    """Daemon thread with an event loop. It runs until `end()`, or longer if a call blocks it."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=f"env-{next(_numbers)}", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Stop the loop and the thread as soon as no call blocks them. May be called twice and from any thread."""
        with suppress(RuntimeError):  # the loop is closed
            self.loop.call_soon_threadsafe(self.loop.stop)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        remaining = asyncio.all_tasks(self.loop)
        for task in remaining:
            task.cancel()
        self.loop.run_until_complete(asyncio.gather(*remaining, return_exceptions=True))
        self.loop.close()


class InlineLoop(EventLoopThread):
    """The caller's own event loop, without a thread: for short computations, which a thread would slow down."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()

    def end(self) -> None:
        """Do nothing: the loop belongs to the caller."""


class Call(Generic[T]):
    """Coroutine that runs in another event loop, while the caller's loop continues.

    Args:
        lock: lock of the session, which the coroutine holds in its loop.
        failed: returns the exception for the caller, from the name of the call and what the coroutine raised.

    Attributes:
        answer: future in the caller's loop with the result or the exception.
        began_at: monotonic time in seconds at which the coroutine started, None while it waits.
        ended_at: monotonic time in seconds at which `end()` abandoned the call, None if it did not.
        over: True if the coroutine has finished.
    """

    def __init__(
        self,
        thread: EventLoopThread,
        name: str,
        limit_s: float,
        lock: asyncio.Lock,
        failed: Callable[[str, BaseException], Exception],
    ) -> None:
        self.thread, self.name, self.limit_s = thread, name, limit_s
        self._lock, self._failed = lock, failed
        self.began_at: float | None = None
        self.ended_at: float | None = None
        self.over = False
        self._caller_loop = asyncio.get_running_loop()
        self._is_inline = thread.loop is self._caller_loop
        self.answer: asyncio.Future[T] = self._caller_loop.create_future()
        self.answer.add_done_callback(_retrieve_exception)
        self._task: asyncio.Task[None] | None = None

    def start(self, work: Callable[[], Coroutine[Any, Any, T]]) -> None:
        """Schedule the coroutine in its loop."""
        if self._is_inline:
            self._create_task(work)
        else:
            self.thread.loop.call_soon_threadsafe(self._create_task, work)

    def end(self, error: Exception) -> None:
        """Abandon the call: `answer` raises `error` now, and the coroutine is cancelled once its thread is free."""
        if self.ended_at is not None or self.over:
            return
        self.ended_at = time.monotonic()
        if not self.answer.done():
            self.answer.set_exception(error)
        with suppress(RuntimeError):  # the loop is closed
            self.thread.loop.call_soon_threadsafe(self._cancel_task)

    def overdue(self, now: float) -> bool:
        """Return True if the call runs for longer than its limit and was not abandoned."""
        return self.ended_at is None and self.began_at is not None and now - self.began_at > self.limit_s

    def is_stuck(self, now: float, grace_s: float) -> bool:
        """Return True if the call was abandoned at least `grace_s` ago and still occupies its thread."""
        return (
            self.ended_at is not None and self.began_at is not None and not self.over and now - self.ended_at > grace_s
        )

    def _create_task(self, work: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._task = self.thread.loop.create_task(self._run(work))
        self._task.add_done_callback(self._finish)

    def _cancel_task(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> None:
        """Run the coroutine and answer at once: callbacks of a task run after all ready ones, which may block."""
        try:
            async with self._lock:
                self.began_at = time.monotonic()
                result = await work()
        except BaseException as error:  # boundary: adapters may raise anything; SystemExit would end the thread
            assert self._task is not None
            if self._task.cancelling():
                raise
            self.over = True
            self._settle(self.answer.set_exception, self._failed(self.name, error))
        else:
            self.over = True
            self._settle(self.answer.set_result, result)

    def _finish(self, task: asyncio.Task[None]) -> None:
        """Mark the call as finished; a task may be cancelled before it starts, and `failed` may raise."""
        self.over = True
        if task.cancelled():
            self._settle(self.answer.cancel)
        elif (fault := task.exception()) is not None:
            self._settle(self.answer.set_exception, fault)

    def _settle(self, settle: Callable[..., Any], *arguments: Any) -> None:
        """Call a method of `answer` in the caller's loop."""

        def settle_unless_done() -> None:
            if not self.answer.done():
                settle(*arguments)

        if self._is_inline:
            return settle_unless_done()
        with suppress(RuntimeError):  # the caller's loop is closed
            self._caller_loop.call_soon_threadsafe(settle_unless_done)


def _retrieve_exception(future: asyncio.Future[Any]) -> None:
    """Mark the exception as retrieved, so that asyncio does not log one that no caller awaits any more."""
    if not future.cancelled():
        future.exception()
