"""One Chromium with its processes: what it takes, whether it answers, and how it is killed."""

import asyncio
import os
import signal
from contextlib import suppress
from dataclasses import dataclass

import psutil
from playwright.async_api import Browser, CDPSession, Error

from verl_agent.errors import EnvError


@dataclass(frozen=True, slots=True)
class BrowserLimits:
    """When a browser is full, and when it is replaced, once its contexts have closed.

    Attributes:
        contexts: most at once.
        lifetime: contexts after which it is replaced.
        memory_mb: MiB of all its processes, shared pages counted once, above which it is replaced.
        ping_s: seconds between two looks at it.
        frozen_s: seconds within which it has to answer one, before it is killed.
        weigh_s: seconds between two measurements of its memory, which cost some milliseconds a process.
    """

    contexts: int = 16
    lifetime: int = 400
    memory_mb: int = 3000
    ping_s: float = 5.0
    frozen_s: float = 15.0
    weigh_s: float = 30.0


class RunningBrowser:
    """One Chromium with its processes. Made by `BrowserPool`."""

    def __init__(self, browser: Browser, probe: CDPSession, process: psutil.Process) -> None:
        self.browser, self.process = browser, process
        self._probe = probe
        self.open = self.opened = 0
        self.retired = False
        self.weigh_at = 0.0

    @property
    def alive(self) -> bool:
        """Whether it can be called."""
        return self.browser.is_connected()

    async def answers(self, within_s: float) -> bool:
        """Whether it still does anything."""
        try:
            async with asyncio.timeout(within_s):
                await self._probe.send("Browser.getVersion")
        except (TimeoutError, Error):
            return False
        return True

    def memory_mb(self) -> float:
        """MiB of all its processes; memory that they share counts once."""
        return sum(map(_proportional_mb, family_of(self.process)))

    def kill(self) -> None:
        """End it with all its processes, at once."""
        end_family(self.process)


def leader(mark: str) -> psutil.Process:
    """The process of the browser that was started with `mark`; it leads a process group of its own."""
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            command = process.cmdline()
            if mark in command and not any(word.startswith("--type=") for word in command):
                return process
    raise EnvError("the browser ended as soon as it had started.")


def end_family(process: psutil.Process) -> None:
    """Kill a browser's leading process with all its processes, at once."""
    for one in family_of(process):
        with suppress(psutil.Error):
            one.kill()
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def family_of(process: psutil.Process) -> list[psutil.Process]:
    """A process and all that it started; none if it has ended."""
    with suppress(psutil.Error):
        return [process, *process.children(recursive=True)]
    return []


def _proportional_mb(process: psutil.Process) -> float:
    try:
        info = process.memory_full_info()
    except psutil.Error:  # it has just ended
        return 0.0
    return float(getattr(info, "pss", info.uss) / 2**20)
