"""Server of one site: a group of processes that is started, health-checked and stopped together."""

import http.client
import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from env_adapters.web_sites.served.copies import HEALTH
from verl_agent.envs.machine.processes import ProcessTree

WORKERS: Mapping[str, int] = {"shop": 2, "forum": 1, "code": 1}
"""Worker processes of each site; the shop's pages take the most CPU time."""
THREADS = 4
ANSWER_TIMEOUT_S = 10.0
"""Seconds that a site may take to answer a health check."""
STOP_TIMEOUT_S = 5.0
"""Seconds that a server may take to stop after SIGTERM."""


@dataclass(slots=True)
class SiteServer:
    """Server of a site.

    Attributes:
        name: name of the site: shop, forum or code.
        python: Python of the sites' virtual environment.
    """

    name: str
    port: int
    python: Path
    variables: Mapping[str, str]
    log: Path
    starts: int = 0
    process: "subprocess.Popen[bytes] | None" = field(default=None, repr=False)
    tree: ProcessTree = field(default_factory=lambda: ProcessTree(grace_s=STOP_TIMEOUT_S), repr=False)

    def start(self) -> None:
        command = [str(self.python), "-m", "gunicorn", "--preload", "--no-control-socket"]
        command += ["--workers", str(WORKERS[self.name]), "--threads", str(THREADS), "--keep-alive", "75"]
        command += ["--bind", f"127.0.0.1:{self.port}", "--log-level", "warning", "--timeout", "60"]
        if os.access("/dev/shm", os.W_OK):
            command += ["--worker-tmp-dir", "/dev/shm"]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.tree.command([*command, f"env_adapters.web_sites.served.{self.name}_wsgi:application"]),
                env=self.tree.environment(self.variables),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.starts += 1

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def answers(self, timeout_s: float = ANSWER_TIMEOUT_S) -> bool:
        """Return True if it answers a health check."""
        return answer_ms(self.port, timeout_s) is not None

    def stop(self) -> None:
        if self.process is None:
            return
        self.process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(STOP_TIMEOUT_S)
        self.tree.end_now(self.process)
        self.process = None


def answer_ms(port: int, timeout_s: float = 5.0) -> float | None:
    """Return the milliseconds in which a site answers a health check, or None if it does not or is not healthy."""
    connection, started_at = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s), time.monotonic()
    try:
        connection.request("GET", HEALTH)
        response = connection.getresponse()
        response.read()
        return (time.monotonic() - started_at) * 1000 if response.status == http.client.OK else None
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def port_is_free(port: int) -> bool:
    """Return True if a server can listen on this port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def free_port() -> int:
    """Return a free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
