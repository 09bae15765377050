"""Threads for functions of users' code."""

import asyncio
from collections.abc import Callable
from typing import Any


async def in_thread(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function of a user's code in a thread, and return what it returns.

    A future cannot hold a `StopIteration`, such as that of an iterator of replies that is used up: it would wait for
    ever. So it becomes a `RuntimeError`, as in a coroutine (PEP 479).

    Raises:
        RuntimeError: the function raised `StopIteration`.
    """

    def call() -> Any:
        try:
            return function(*arguments)
        except StopIteration as error:
            name = getattr(function, "__qualname__", repr(function))
            raise RuntimeError(f"{name} raised StopIteration: an iterator in it has no further value") from error

    return await asyncio.to_thread(call)
