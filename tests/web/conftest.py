"""The sites, started once for all tests of this folder."""

import os
import shutil
from pathlib import Path

import pytest

from env_adapters.webarena.sites import control
from env_adapters.webarena.sites.folders import Home, sites_home
from env_adapters.webarena.sites.world import DEFAULT_SEED


@pytest.fixture(scope="session")
def sites(tmp_path_factory):
    """Sites of their own on free ports; what takes minutes to make is made once and kept in the cache."""
    kept = sites_home().with_name("webarena-tests") if "CI" not in os.environ else tmp_path_factory.mktemp("webarena")
    if shutil.which("fossil") is None and shutil.which("apt-get") is None:
        pytest.skip("the code host needs fossil: apt-get install fossil")
    home = Home(Path(kept))
    control.down(home)
    yield control.up(home, DEFAULT_SEED, 0, print)
    control.down(home)
