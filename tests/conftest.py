"""Ctrl-C for the processes of tests, programs that the machine lacks, and the fixture of the embedded sites."""

import os
import shutil
import signal

import pytest

from env_adapters.web_sites import control
from env_adapters.web_sites.folders import Home, sites_home
from env_adapters.web_sites.install import fossil_program
from env_adapters.web_sites.world import DEFAULT_SEED
from verl_agent.errors import ConfigError
from verl_agent.platform.worker_environment import thread_waiting

os.environ.update(thread_waiting())  # before the import of torch
signal.signal(signal.SIGINT, signal.default_int_handler)  # `nohup` and cron start pytest, and so its children, without


@pytest.fixture(scope="session")
def sites():
    """Run the sites on free ports, apart from those of the user; data that takes a minute to create stays cached."""
    home = Home(sites_home().with_name("webarena-tests"))
    home.folder.mkdir(parents=True, exist_ok=True)
    try:
        fossil_program(home)
    except ConfigError as error:
        pytest.skip(str(error))
    control.stop_sites(home)
    yield control.start_sites(home, DEFAULT_SEED, 0, print)
    control.stop_sites(home)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Name in the last lines the programs for whose lack tests were skipped, and the command that installs them."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    reasons = [report.longrepr[2].lower() for report in reporter.stats.get("skipped", [])] if reporter else []
    lacking = {name: count for name in ("chromium", "fossil") if (count := sum(name in reason for reason in reasons))}
    if not lacking:
        return
    counts = ", ".join(f"{name} ({count} skipped)" for name, count in lacking.items())
    managers = {"apt-get": "install", "dnf": "install", "zypper": "install", "pacman": "-S"}
    manager = next((name for name in managers if shutil.which(name)), "apt-get")
    sudo = "" if os.getuid() == 0 else "sudo "
    reporter.write_line(f"Tests were skipped because this machine lacks {counts}. To run them too:")
    reporter.write_line(f"  {sudo}{manager} {managers[manager]} {' '.join(lacking)}")
