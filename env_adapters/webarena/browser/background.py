"""Runs browser operations in the background and ignores their errors."""

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from typing import Any

from playwright.async_api import Error

_TASKS: set[asyncio.Future[None]] = set()
"""Running operations; the event loop keeps no reference to a task."""


async def ignore_errors(work: Awaitable[Any]) -> None:
    """Await an operation of the browser that may fail, because its page or dialog has closed."""
    with suppress(Error):
        await work


def run_in_background(work: Awaitable[Any]) -> None:
    """Start an operation of the browser; its errors are ignored."""
    task = asyncio.ensure_future(ignore_errors(work))
    _TASKS.add(task)
    task.add_done_callback(_TASKS.discard)
