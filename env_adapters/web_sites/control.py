"""Start, stop and status of the sites."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from env_adapters.web_sites.folders import Home
from env_adapters.web_sites.install import ROOT, Say, install_sites
from env_adapters.web_sites.processes import answer_ms, free_port, port_is_free
from env_adapters.web_sites.siteset import SiteSet
from env_adapters.web_sites.supervisor import SITES, START_S
from verl_agent.envs.machine.databases import check_databases
from verl_agent.envs.machine.locks import is_held, locked
from verl_agent.envs.machine.memory import proportional_mb, with_descendants
from verl_agent.errors import ConfigError

STOP_TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True)
class SiteHealth:
    """Health of a site.

    Attributes:
        answer_ms: response time in milliseconds, or None without a response.
        memory_mb: proportional set size of its processes in MiB.
    """

    name: str
    port: int
    answer_ms: float | None
    processes: int
    memory_mb: float


def start_sites(home: Home, seed: int, first_port: int, say: Say) -> SiteSet:
    """Install and start the sites, or return those that already run.

    Raises:
        ConfigError: a requirement is missing, a port is in use, or sites of another seed run from this folder.
    """
    with exclusive_start(home, say):
        return _up(home, seed, first_port, say)


@contextmanager
def exclusive_start(home: Home, say: Say) -> Iterator[None]:
    """Hold the lock for installing and starting sites in this folder; wait if another process holds it."""
    home.folder.mkdir(parents=True, exist_ok=True)
    with locked(home.installing, lambda: say("waiting for another process that starts these sites")):
        yield


def _up(home: Home, seed: int, first_port: int, say: Say) -> SiteSet:
    if is_up(home):
        sites = SiteSet.running(home.folder)
        sites.check(seed)
        return sites
    check_databases(home.folder, "Choose a folder on a local disk: set VERL_AGENT_SITES.")
    install_sites(home, seed, say)
    ports = [first_port + index if first_port else free_port() for index in range(len(SITES))]
    in_use = [port for port in ports if not port_is_free(port)]
    if in_use:
        raise ConfigError(f"Port {in_use[0]} is in use. Choose others: verl-agent sites up --port {first_port + 100}")
    home.state.unlink(missing_ok=True)
    remove_copies(home)
    say("starting the sites")
    with (home.logs / "supervisor.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "env_adapters.web_sites.supervisor", str(home.folder), str(seed), *map(str, ports)],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    deadline = time.monotonic() + START_S
    while not home.state.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            raise ConfigError(f"The sites did not start. See {home.logs}:\n{tail(home.logs)}")
        time.sleep(0.1)
    return SiteSet.running(home.folder)


def stop_sites(home: Home) -> bool:
    """Stop the sites; return False if none were running."""
    if not is_up(home):
        return False
    pid = SiteSet.running(home.folder).pid
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + STOP_TIMEOUT_S
    while has_supervisor(home):
        if time.monotonic() > deadline:
            raise ConfigError(
                f"The sites of process {pid} did not stop within {STOP_TIMEOUT_S:.0f} s. Kill it: kill -9 {pid}"
            )
        time.sleep(0.1)
    remove_copies(home)
    return True


def remove_copies(home: Home) -> int:
    """Remove all copies, including that of visitors, and return their number.

    Requests of sessions that use a removed copy are refused.
    """
    copies = list(home.copies.iterdir()) if home.copies.is_dir() else []
    for copy in copies:
        shutil.rmtree(copy, ignore_errors=True)
    return len(copies)


def health_of_sites(home: Home) -> Sequence[SiteHealth]:
    """Return the health of each site."""
    if not is_up(home):
        raise ConfigError(f"No sites run from {home.folder}. Start them: verl-agent sites up")
    sites = SiteSet.running(home.folder)
    rows = []
    for name, port in sites.ports.items():
        members = processes_of(sites, name)
        rows.append(SiteHealth(name, port, answer_ms(port), len(members), sum(map(proportional_mb, members))))
    return rows


def processes_of(sites: SiteSet, name: str) -> list[psutil.Process]:
    """Return the processes of a site."""
    port = sites.ports[name]
    under_keepers = [process for keeper in psutil.Process(sites.pid).children() for process in keeper.children()]
    servers = [process for process in under_keepers if port in listening_ports(process)]
    return [process for server in servers for process in with_descendants(server)]


def listening_ports(process: psutil.Process) -> set[int]:
    """Return the ports that a process listens on."""
    try:
        connections = process.net_connections("tcp4")
    except psutil.Error:
        return set()
    return {connection.laddr.port for connection in connections if connection.status == psutil.CONN_LISTEN}


def is_up(home: Home) -> bool:
    """Return True if sites run from this folder and are ready."""
    return has_supervisor(home) and home.state.exists()


def has_supervisor(home: Home) -> bool:
    """Return True if a supervisor holds the lock of this folder, including while sites start or stop."""
    return is_held(home.lock)


def tail(logs: Path) -> str:
    """Return the end of each log."""
    parts = [file.read_text(encoding="utf-8", errors="replace").strip()[-600:] for file in sorted(logs.glob("*.log"))]
    return "\n".join(part for part in parts if part)
