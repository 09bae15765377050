"""Playwright's driver: the Node.js process that starts the browsers of a pool and sends commands to them."""

import asyncio
import os
from collections.abc import Sequence
from contextlib import suppress

import psutil
from playwright.async_api import Error, Playwright, async_playwright

from env_adapters.webarena.browser.chromium import find_chromium
from env_adapters.webarena.browser.process import RunningBrowser, kill_browser, main_process, succeeds
from verl_agent.envs.machine.processes import ProcessTree
from verl_agent.errors import EnvError

ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--no-pings",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-breakpad",
    "--disable-domain-reliability",
    "--webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)
"""Browsers resolve no host names, network proxies do. A request that does not go through a network proxy fails."""
UNUSED_PROXY = "http://127.0.0.1:9"
"""Proxy for traffic that belongs to no context; nothing listens on this port."""
MARK_ARGUMENT = "--verl-agent-browser"
START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 3.0


class PlaywrightDriver:
    """Playwright's driver, started with the first browser."""

    def __init__(self) -> None:
        self._playwright: Playwright | None = None
        self._processes: Sequence[psutil.Process] = ()

    async def start_browser(self) -> RunningBrowser:
        """Start a browser.

        Raises:
            ConfigError: Chromium is not installed.
            EnvError: the browser or the driver does not start. Call `stop` if the driver has no other browser.
        """
        command = find_chromium()
        tree, started = ProcessTree(), None
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                if self._playwright is None:
                    self._playwright = await self._start()
                started = await self._launch(self._playwright, command, tree)
        except (OSError, Error) as error:  # a TimeoutError is an OSError
            raise EnvError(f"{command} does not start: {error_summary(error)}") from error
        finally:
            if started is None:
                with suppress(EnvError):
                    kill_browser(main_process(f"{MARK_ARGUMENT}={tree.mark}"), tree)
        return started

    async def stop(self) -> None:
        """Stop the driver, and kill it if it does not answer; the next browser starts another one."""
        playwright, self._playwright = self._playwright, None
        if playwright is not None:
            with suppress(Exception):  # boundary: the driver may have failed, and is killed below
                async with asyncio.timeout(STOP_TIMEOUT_S):
                    await playwright.stop()
        self.kill()

    async def answers(self, timeout_s: float) -> bool:
        """Return True if the driver carries out a command without a browser within `timeout_s`, or is not running."""

        async def open_and_close(playwright: Playwright) -> None:
            await (await playwright.request.new_context()).dispose()

        return self._playwright is None or await succeeds(open_and_close(self._playwright), timeout_s)

    def kill(self) -> None:
        """Kill the driver; Playwright then fails all commands of its browsers."""
        self._playwright = None
        for process in self._processes:
            with suppress(psutil.Error):
                process.kill()
        self._processes = ()

    async def _start(self) -> Playwright:
        before = _drivers()
        try:
            return await async_playwright().start()
        finally:
            self._processes = [process for process in _drivers() if process not in before]

    async def _launch(self, playwright: Playwright, command: str, tree: ProcessTree) -> RunningBrowser:
        mark = f"{MARK_ARGUMENT}={tree.mark}"
        browser = await playwright.chromium.launch(
            executable_path=command,
            args=[*ARGUMENTS, mark],
            env=dict(tree.environment(os.environ)),
            proxy={"server": UNUSED_PROXY},
            handle_sigint=False,
        )
        return RunningBrowser(browser, await browser.new_browser_cdp_session(), main_process(mark), tree)


def error_summary(error: BaseException) -> str:
    """Return the first line of an error's message, or the name of its class."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


def _drivers() -> list[psutil.Process]:
    """Return the drivers that this process has started, also for other pools."""
    found = []
    for process in psutil.Process().children():
        with suppress(psutil.Error):
            if "run-driver" in process.cmdline():
                found.append(process)
    return found
