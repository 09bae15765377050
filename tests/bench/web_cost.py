"""Who of the web environment takes what: seconds of computing, memory, processes and handles, by part."""

import os
from collections.abc import Iterator
from pathlib import Path

import psutil

from env_adapters.webarena.browser.pool import MARK_ARGUMENT
from env_adapters.webarena.sites import SiteSet
from verl_agent.errors import ConfigError

OURS, DRIVER, BROWSER, SITES = "ours", "driver", "browser", "sites"
"""This process; Playwright's; Chromium's; those that serve the pages."""


def parts(server: int | None) -> Iterator[tuple[str, psutil.Process]]:
    """Each process with the part that it belongs to.

    Args:
        server: number of the process that serves the pages; it may be a child of this one.
    """
    me = psutil.Process()
    yield OURS, me
    for child in me.children():
        if child.pid == server:
            continue
        for process in family(child):
            yield (BROWSER if is_browser(process, child) else DRIVER), process
    if server is not None:
        for process in family(psutil.Process(server)):
            yield SITES, process


def family(process: psutil.Process) -> list[psutil.Process]:
    """A process and all that it started."""
    try:
        return [process, *process.children(recursive=True)]
    except psutil.Error:
        return []


def is_browser(process: psutil.Process, root: psutil.Process) -> bool:
    """Whether a process below `root` is Chromium's: it, or one above it, carries the mark of the farm."""
    try:
        while process != root:
            if any(word.startswith(MARK_ARGUMENT) for word in process.cmdline()):
                return True
            process = process.parent() or root
    except psutil.Error:
        pass
    return False


def computed_s(server: int | None) -> dict[str, float]:
    """Seconds that each part has computed so far, with those of its processes that have ended."""
    found = dict.fromkeys((OURS, DRIVER, BROWSER, SITES), 0.0)
    for part, process in parts(server):
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue
        found[part] += times.user + times.system
        if part != OURS:  # what the driver started and has ended are browsers
            found[BROWSER if part == DRIVER else part] += times.children_user + times.children_system
    return found


def taken(server: int | None) -> dict[str, float]:
    """MiB of each part, memory that processes share counted once; processes and handles of all but the sites."""
    found: dict[str, float] = dict.fromkeys((OURS, DRIVER, BROWSER, SITES), 0.0)
    processes = handles = 0
    for part, process in parts(server):
        try:
            found[part] += process.memory_full_info().pss / 2**20
            if part != SITES:
                processes, handles = processes + 1, handles + process.num_fds()
        except psutil.Error:
            continue
    return found | {"processes": processes, "handles": handles}


def sites_process() -> int:
    """The process that looks after the embedded sites.

    Raises:
        ConfigError: none run.
    """
    pid = SiteSet.running().pid
    if not psutil.pid_exists(pid):
        raise ConfigError(f"the sites of process {pid} have ended. Start them: verl-agent sites up")
    return pid


def copies_mb() -> tuple[int, float]:
    """How many copies of the embedded sites there are, and their MiB on disk."""
    folder = SiteSet.running().home.copies
    names = [name for name in os.listdir(folder) if name != "visitor"]
    blocks = sum(file.stat().st_blocks for name in names for file in Path(folder, name).rglob("*") if file.exists())
    return len(names), blocks * 512 / 2**20
