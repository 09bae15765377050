"""Ctrl-C for the processes of tests, and the fixture of the embedded sites."""

import signal

import pytest

from env_adapters.webarena.sites import control
from env_adapters.webarena.sites.folders import Home, sites_home
from env_adapters.webarena.sites.install import fossil_program
from env_adapters.webarena.sites.world import DEFAULT_SEED
from verl_agent.errors import ConfigError

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
    control.down(home)
    yield control.up(home, DEFAULT_SEED, 0, print)
    control.down(home)
