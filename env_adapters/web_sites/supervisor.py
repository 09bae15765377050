"""Supervisor process of the sites: `python -m env_adapters.web_sites.supervisor FOLDER SEED PORTS`.

It starts the servers, restarts servers that have ended or do not answer, and removes copies that are no longer used.
"""

import json
import logging
import os
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from env_adapters.web_sites.folders import Home, code_key
from env_adapters.web_sites.install import environment
from env_adapters.web_sites.processes import SiteServer
from env_adapters.web_sites.served.copies import VISITOR
from verl_agent.envs.machine.locks import FileLock

SITES = ("shop", "forum", "code")
POLL_S = 0.5
"""Seconds between two checks that the processes run."""
HEALTH_CHECK_S = 10.0
"""Seconds between two health checks of the sites."""
MAX_FAILURES = 3
"""Consecutive failed health checks after which a site is restarted."""
IDLE_S = 1800.0
"""Seconds without a request after which a copy is removed."""
START_S = 60.0
LOCK_TIMEOUT_S = 1.0

logger = logging.getLogger(__name__)


class Supervisor:
    """Supervisor of the servers of one set of sites."""

    def __init__(self, home: Home, seed: int, ports: Sequence[int]) -> None:
        self.home, self.seed, self.code = home, seed, code_key()
        variables, python = environment(home, home.seed(seed)), home.venv / "bin" / "python"
        self.servers = [
            SiteServer(name, port, python, variables, home.logs / f"{name}.log")
            for name, port in zip(SITES, ports, strict=True)
        ]
        self.failures = dict.fromkeys(SITES, 0)
        self.ended = False

    def run(self) -> int:
        """Run the sites until SIGTERM or SIGINT and return the exit status."""
        lock = FileLock(self.home.lock)
        if not acquire(lock):
            logger.error("other sites already run from %s", self.home.folder)
            return 1
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self.end)
        try:
            for server in self.servers:
                server.start()
            if not self.wait():
                return 1
            self.write_state()
            self.watch()
        finally:
            self.home.state.unlink(missing_ok=True)
            for server in self.servers:
                server.stop()
            lock.release()
        return 0

    def end(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal by ending the loop."""
        self.ended = True

    def wait(self) -> bool:
        """Wait until all sites answer; return False if one does not."""
        deadline = time.monotonic() + START_S
        waiting = list(self.servers)
        while waiting and not self.ended:
            ended = [server.name for server in waiting if not server.alive]
            if ended or time.monotonic() > deadline:
                names = ended or [server.name for server in waiting]
                logger.error("%s did not start; see %s", ", ".join(names), self.home.logs)
                return False
            waiting = [server for server in waiting if not server.answers(1.0)]
            time.sleep(0.1)
        return not self.ended

    def write_state(self) -> None:
        """Write ports and process id for the processes that use the sites."""
        ports = {server.name: server.port for server in self.servers}
        state = {"pid": os.getpid(), "seed": self.seed, "code": self.code, "ports": ports}
        new = self.home.state.with_suffix(".new")
        new.write_text(json.dumps(state), encoding="utf-8")
        new.replace(self.home.state)

    def watch(self) -> None:
        """Restart servers and remove idle copies until the end."""
        checked_at = time.monotonic()
        while not self.ended:
            for server in self.servers:
                if not server.alive:
                    logger.warning("%s has ended and is restarted", server.name)
                    self.restart(server)
            if time.monotonic() - checked_at > HEALTH_CHECK_S:
                self.check_health()
                remove_idle_copies(self.home.copies, IDLE_S)
                checked_at = time.monotonic()
            time.sleep(POLL_S)

    def check_health(self) -> None:
        """Restart the sites that do not answer."""
        for server in self.servers:
            self.failures[server.name] = 0 if server.answers() else self.failures[server.name] + 1
            if self.failures[server.name] >= MAX_FAILURES:
                logger.warning("%s does not answer and is restarted", server.name)
                self.restart(server)

    def restart(self, server: SiteServer) -> None:
        """Stop a server and start it after a delay that doubles with each start."""
        server.stop()
        time.sleep(min(0.1 * 2**server.starts, 10.0))
        server.start()
        self.failures[server.name] = 0


def acquire(lock: FileLock) -> bool:
    """Acquire the lock of the sites; return False if another supervisor holds it.

    The function waits for processes that hold a shared lock for a moment to check for a supervisor.
    """
    deadline = time.monotonic() + LOCK_TIMEOUT_S
    while not lock.acquire(wait=False):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def remove_idle_copies(copies: Path, idle_s: float) -> int:
    """Remove the copies that no request has used for `idle_s` seconds and return their number."""
    removed = 0
    for copy in copies.iterdir():
        try:
            idle = time.time() - copy.stat().st_mtime
        except FileNotFoundError:  # the session has released it
            continue
        if copy.name != VISITOR and idle > idle_s:
            shutil.rmtree(copy, ignore_errors=True)
            removed += 1
    return removed


def main(arguments: Sequence[str]) -> int:
    """Run the sites of a folder."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")
    folder, seed, *ports = arguments
    return Supervisor(Home(Path(folder)), int(seed), [int(port) for port in ports]).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
