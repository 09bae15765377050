"""Start and stop the sites, and say how they are."""

import fcntl
import http.client
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

from env_adapters.webarena.sites.folders import Home
from env_adapters.webarena.sites.install import ROOT, Say, install
from env_adapters.webarena.sites.processes import free_port, port_is_free
from env_adapters.webarena.sites.served.copies import HEALTH
from env_adapters.webarena.sites.siteset import SiteSet
from env_adapters.webarena.sites.supervisor import SITES, START_S
from verl_agent.errors import ConfigError

FIRST_PORT = 7870
END_S = 20.0


@dataclass(frozen=True, slots=True)
class Health:
    """How a site is.

    Attributes:
        name: shop, forum or code.
        port: where it listens on this machine.
        answer_ms: milliseconds until it answered, None if it did not.
        processes: that answer for it.
        memory_mb: MiB of these that nobody else uses, and their part of what they share.
    """

    name: str
    port: int
    answer_ms: float | None
    processes: int
    memory_mb: float


def up(home: Home, seed: int, first_port: int, say: Say) -> SiteSet:
    """Start the sites, with all that they need; those that run already are left alone.

    Args:
        home: their folder.
        seed: of the world.
        first_port: the shop's, the others follow; 0 for any that are free.
        say: is told what is done.

    Raises:
        ConfigError: something is missing, a port is taken, or other sites run here.
    """
    with alone(home, say):
        return _up(home, seed, first_port, say)


@contextmanager
def alone(home: Home, say: Say) -> Iterator[None]:
    """Wait until nobody else installs or starts sites in this folder, and keep others from it."""
    home.folder.mkdir(parents=True, exist_ok=True)
    with home.installing.open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another process that starts these sites")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _up(home: Home, seed: int, first_port: int, say: Say) -> SiteSet:
    if is_up(home):
        sites = SiteSet.running(home.folder)
        sites.check(seed)
        return sites
    install(home, seed, say)
    ports = [first_port + place if first_port else free_port() for place in range(len(SITES))]
    taken = [port for port in ports if not port_is_free(port)]
    if taken:
        raise ConfigError(f"Port {taken[0]} is taken. Choose others: verl-agent sites up --port {first_port + 100}")
    home.state.unlink(missing_ok=True)
    sweep_all(home)
    say("starting the sites")
    with (home.logs / "supervisor.log").open("ab") as log:
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "env_adapters.webarena.sites.supervisor",
                str(home.folder),
                str(seed),
                *map(str, ports),
            ],
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


def down(home: Home) -> bool:
    """End the sites; whether any ran.

    Raises:
        ConfigError: they do not end.
    """
    if not is_up(home):
        return False
    pid = SiteSet.running(home.folder).pid
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + END_S
    while looked_after(home):
        if time.monotonic() > deadline:
            raise ConfigError(f"The sites of process {pid} did not end within {END_S:.0f} s.")
        time.sleep(0.1)
    sweep_all(home)
    return True


def reset(home: Home) -> int:
    """Remove all copies, the visitors' too, so that each begins anew; returns how many there were.

    Sessions that use one lose it, and their requests are refused.
    """
    return sweep_all(home)


def status(home: Home) -> Sequence[Health]:
    """How each site is.

    Raises:
        ConfigError: none run.
    """
    if not is_up(home):
        raise ConfigError(f"No sites run from {home.folder}. Start them: verl-agent sites up")
    sites = SiteSet.running(home.folder)
    found = []
    for name, port in sites.ports.items():
        members = processes_of(sites, name)
        found.append(Health(name, port, answer_ms(port), len(members), sum(map(memory_mb, members))))
    return found


def processes_of(sites: SiteSet, name: str) -> list[psutil.Process]:
    """The processes that answer for a site."""
    port = sites.ports[name]
    return [
        one for process in psutil.Process(sites.pid).children() if port in listening(process) for one in family(process)
    ]


def memory_mb(process: psutil.Process) -> float:
    """MiB of a process, with its part of what it shares; 0 of one that has ended."""
    try:
        return float(process.memory_full_info().pss) / 2**20
    except psutil.Error:
        return 0.0


def family(process: psutil.Process) -> list[psutil.Process]:
    """A process and all that it started."""
    try:
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def listening(process: psutil.Process) -> set[int]:
    """Ports that a process listens on."""
    try:
        return {one.laddr.port for one in process.net_connections("tcp4") if one.status == psutil.CONN_LISTEN}
    except psutil.Error:
        return set()


def answer_ms(port: int) -> float | None:
    """Milliseconds until a site answers, None if it does not."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    began = time.monotonic()
    try:
        connection.request("GET", HEALTH)
        connection.getresponse().read()
        return (time.monotonic() - began) * 1000
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def is_up(home: Home) -> bool:
    """Whether sites run from this folder, and are ready."""
    return looked_after(home) and home.state.exists()


def looked_after(home: Home) -> bool:
    """Whether a process looks after sites of this folder, also while they start or end: it holds the lock."""
    if not home.lock.exists():
        return False
    with home.lock.open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)  # a share: others may ask at the same time
        except BlockingIOError:
            return True
    return False


def sweep_all(home: Home) -> int:
    """Remove all copies; returns how many there were."""
    copies = list(home.copies.iterdir()) if home.copies.is_dir() else []
    for copy in copies:
        shutil.rmtree(copy, ignore_errors=True)
    return len(copies)


def tail(logs: Path) -> str:
    """The end of each log."""
    parts = [file.read_text(encoding="utf-8", errors="replace").strip()[-600:] for file in sorted(logs.glob("*.log"))]
    return "\n".join(part for part in parts if part)
