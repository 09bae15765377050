"""Servers of the sites: they end with all that they have started, also with a supervisor that is killed."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from env_adapters.web_sites.processes import SiteServer, free_port
from tests import ROOT
from tests.support.escapes import WAYS, alive, left

SPAWNS = f"""#!{sys.executable}
import sys, time
sys.path.insert(0, {str(ROOT)!r})
from tests.support.escapes import WAYS, spawn
folder = __file__.rpartition("/")[0]
for number, way in enumerate(WAYS):
    spawn(way, f"{{folder}}/{{number}}")
open(f"{{folder}}/ready", "w").close()
time.sleep(1000)
"""


def server_of(folder: Path) -> SiteServer:
    """Return a server whose Python is a program that starts children in all ways."""
    program = folder / "python"
    program.write_text(SPAWNS)
    program.chmod(0o755)
    return SiteServer("shop", free_port(), program, dict(os.environ), folder / "log")


def children(folder: Path) -> list[int]:
    give_up = time.monotonic() + 30
    while not (folder / "ready").exists() and time.monotonic() < give_up:
        time.sleep(0.01)
    return [int((folder / str(number)).read_text()) for number in range(len(WAYS))]


def test_a_stopped_server_leaves_no_process(tmp_path):
    server = server_of(tmp_path)
    server.start()
    pids = children(tmp_path)
    assert all(map(alive, pids)) and server.alive
    server.stop()
    assert [pid for pid in pids if alive(pid)] == [] and not server.alive


@pytest.mark.parametrize("number", [9, 15])
def test_servers_end_with_a_supervisor_that_ends(number, tmp_path):
    server = server_of(tmp_path)
    script = f"""
import os, time
from pathlib import Path
from env_adapters.web_sites.processes import SiteServer
SiteServer("shop", {server.port}, Path({str(server.python)!r}), dict(os.environ), Path({str(server.log)!r})).start()
time.sleep(1000)
"""
    supervisor = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT)
    pids = children(tmp_path)
    supervisor.send_signal(number)
    supervisor.wait()
    assert left(pids) == []
