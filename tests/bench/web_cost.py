"""Resource usage of the web environment by component: CPU time, memory, processes and file descriptors."""

import os
from collections.abc import Iterator
from pathlib import Path

import psutil

from env_adapters.web_sites.siteset import SiteSet
from env_adapters.webarena.browser.driver import MARK_ARGUMENT
from verl_agent.envs.machine.memory import with_descendants
from verl_agent.errors import ConfigError

PYTHON, DRIVER, BROWSER, SITES = "python", "driver", "browser", "sites"
"""Components: this process, Playwright's driver, Chromium, and the processes that serve the pages."""


def component_processes(server: int | None) -> Iterator[tuple[str, psutil.Process]]:
    """Yield each process with its component.

    Args:
        server: process id of the server of the pages; it may be a child of this process.
    """
    me = psutil.Process()
    yield PYTHON, me
    for child in me.children():
        if child.pid == server:
            continue
        for process in with_descendants(child):
            yield (BROWSER if is_browser(process, child) else DRIVER), process
    if server is not None:
        for process in with_descendants(psutil.Process(server)):
            yield SITES, process


def is_browser(process: psutil.Process, root: psutil.Process) -> bool:
    """Return True if a process below `root`, or a parent of it, has the mark of the browser pool."""
    try:
        while process != root:
            if any(argument.startswith(MARK_ARGUMENT) for argument in process.cmdline()):
                return True
            process = process.parent() or root
    except psutil.Error:
        pass
    return False


def cpu_seconds(server: int | None) -> dict[str, float]:
    """Return the CPU time of each component in seconds, including its ended processes."""
    seconds = dict.fromkeys((PYTHON, DRIVER, BROWSER, SITES), 0.0)
    for component, process in component_processes(server):
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue
        seconds[component] += times.user + times.system
        if component != PYTHON:  # ended children of the driver are browsers
            seconds[BROWSER if component == DRIVER else component] += times.children_user + times.children_system
    return seconds


def resource_usage(server: int | None) -> dict[str, float]:
    """Return MiB of each component (shared memory counts once), and processes and handles without the sites."""
    usage: dict[str, float] = dict.fromkeys((PYTHON, DRIVER, BROWSER, SITES), 0.0)
    processes = handles = 0
    for component, process in component_processes(server):
        try:
            usage[component] += process.memory_full_info().pss / 2**20
            if component != SITES:
                processes, handles = processes + 1, handles + process.num_fds()
        except psutil.Error:
            continue
    return usage | {"processes": processes, "handles": handles}


def sites_process() -> int:
    """Return the process id of the supervisor of the embedded sites.

    Raises:
        ConfigError: the sites are not running.
    """
    pid = SiteSet.running().pid
    if not psutil.pid_exists(pid):
        raise ConfigError(f"the sites of process {pid} have ended. Start them: verl-agent sites up")
    return pid


def copies_mb() -> tuple[int, float]:
    """Return the number of copies of the embedded sites, and their MiB on disk."""
    folder = SiteSet.running().home.copies
    names = [name for name in os.listdir(folder) if name != "visitor"]
    blocks = sum(file.stat().st_blocks for name in names for file in Path(folder, name).rglob("*") if file.exists())
    return len(names), blocks * 512 / 2**20
