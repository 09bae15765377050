"""One Chromium with all its processes: health check, memory, and termination."""

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psutil
from playwright.async_api import Browser, CDPSession, Error

from verl_agent.envs.machine.memory import proportional_mb, with_descendants
from verl_agent.envs.machine.processes import ProcessTree
from verl_agent.errors import EnvError


@dataclass(frozen=True, slots=True)
class BrowserLimits:
    """Limits of one browser. A retired browser takes no new contexts and is closed after its last one.

    Attributes:
        max_open_contexts: most contexts at the same time.
        max_contexts: number of contexts, over its lifetime, after which a browser is retired.
        max_memory_mb: memory in MiB of all its processes, shared pages counted once, above which it is retired.
        ping_interval_s: seconds between two health checks.
        ping_timeout_s: seconds after which a health check fails and the browser is killed.
        memory_interval_s: seconds between two measurements of its memory, each of which takes some milliseconds for
            every process.
    """

    max_open_contexts: int = 16
    max_contexts: int = 400
    max_memory_mb: int = 3000
    ping_interval_s: float = 5.0
    ping_timeout_s: float = 15.0
    memory_interval_s: float = 30.0


class RunningBrowser:
    """One Chromium with all its processes, started by a `BrowserPool`.

    Attributes:
        open_contexts: number of contexts that are open.
        all_contexts: number of contexts that it was asked for so far.
        retired: True if it takes no new contexts.
        next_memory_check: monotonic time in seconds of the next measurement of its memory.
    """

    def __init__(self, browser: Browser, probe: CDPSession, process: psutil.Process, tree: ProcessTree) -> None:
        self.browser, self.process, self._tree = browser, process, tree
        self._probe = probe
        self.open_contexts = self.all_contexts = 0
        self.retired = False
        self.next_memory_check = 0.0
        self._killed = False

    @property
    def alive(self) -> bool:
        """True while Playwright is connected to it; a driver that was killed with it does not tell its end."""
        return not self._killed and self.browser.is_connected()

    async def answers(self, timeout_s: float) -> bool:
        """Return True if it answers a health check within `timeout_s`."""
        return self.alive and await succeeds(self._probe.send("Browser.getVersion"), timeout_s)

    def memory_mb(self) -> float:
        """Return the memory in MiB of all its processes; shared memory counts once."""
        return sum(map(proportional_mb, with_descendants(self.process)))

    def kill(self) -> None:
        self._killed = True
        kill_browser(self.process, self._tree)


def main_process(mark: str) -> psutil.Process:
    """Return the main process of the browser that was started with the argument `mark`.

    It is the leader of a process group of its own.

    Raises:
        EnvError: no such process is running.
    """
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            command = process.cmdline()
            if mark in command and not any(argument.startswith("--type=") for argument in command):
                return process
    raise EnvError("the browser ended as soon as it had started.")


def kill_browser(process: psutil.Process, tree: ProcessTree) -> None:
    """Kill the main process of a browser, its descendants, and those that have left them but carry the tree's mark.

    Chromium writes its title over the environment of its own processes, so these are found as descendants.
    """
    for member in with_descendants(process):
        with suppress(psutil.Error):
            member.kill()
    tree.sweep()


async def succeeds(command: Awaitable[Any], timeout_s: float) -> bool:
    """Return True if a command of Playwright succeeds within `timeout_s`."""
    try:
        async with asyncio.timeout(timeout_s):
            await command
    except (TimeoutError, Error):
        return False
    return True
