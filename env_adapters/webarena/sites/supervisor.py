"""The process that looks after the sites: `python -m env_adapters.webarena.sites.supervisor FOLDER SEED PORTS`.

It starts the servers, restarts what has ended or does not answer, and removes copies that nobody has used for long.
"""

import fcntl
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
from typing import IO

from env_adapters.webarena.sites.folders import Home, code_key
from env_adapters.webarena.sites.install import environment
from env_adapters.webarena.sites.processes import Server
from env_adapters.webarena.sites.served.copies import VISITOR

SITES = ("shop", "forum", "code")
LOOK_S = 0.5
"""Seconds between two looks at the processes."""
ASK_S = 10.0
"""Seconds between two questions whether a site answers."""
FAILURES = 3
"""Questions in a row without an answer after which a site is restarted."""
IDLE_S = 1800.0
"""Seconds after which a copy that no request has used is removed; a running session uses its copy."""
START_S = 60.0
ASKED_S = 1.0

logger = logging.getLogger(__name__)


class Supervisor:
    """The servers of one set of sites."""

    def __init__(self, home: Home, seed: int, ports: Sequence[int]) -> None:
        self.home, self.seed, self.code = home, seed, code_key()
        variables, python = environment(home, home.seed(seed)), home.venv / "bin" / "python"
        self.servers = [
            Server(name, port, python, variables, home.logs / f"{name}.log")
            for name, port in zip(SITES, ports, strict=True)
        ]
        self.failures = dict.fromkeys(SITES, 0)
        self.ended = False

    def run(self) -> int:
        """Run the sites until a signal says to end; returns the exit status."""
        with self.home.lock.open("a") as lock:
            if not hold(lock):
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
        return 0

    def end(self, number: int, frame: FrameType | None) -> None:
        """A signal came."""
        self.ended = True

    def wait(self) -> bool:
        """Wait until all sites answer; whether they do."""
        deadline = time.monotonic() + START_S
        waiting = list(self.servers)
        while waiting and not self.ended:
            dead = [server.name for server in waiting if not server.alive]
            if dead or time.monotonic() > deadline:
                logger.error("%s did not start; see %s", ", ".join(dead or [s.name for s in waiting]), self.home.logs)
                return False
            waiting = [server for server in waiting if not server.answers(1.0)]
            time.sleep(0.1)
        return not self.ended

    def write_state(self) -> None:
        """Say to the world where the sites are."""
        ports = {server.name: server.port for server in self.servers}
        state = {"pid": os.getpid(), "seed": self.seed, "code": self.code, "ports": ports}
        new = self.home.state.with_suffix(".new")
        new.write_text(json.dumps(state), encoding="utf-8")
        new.replace(self.home.state)

    def watch(self) -> None:
        """Look after the sites until the end."""
        asked = time.monotonic()
        while not self.ended:
            for server in self.servers:
                if not server.alive:
                    logger.warning("%s has ended and is started anew", server.name)
                    self.restart(server)
            if time.monotonic() - asked > ASK_S:
                self.ask()
                sweep(self.home.copies, IDLE_S)
                asked = time.monotonic()
            time.sleep(LOOK_S)

    def ask(self) -> None:
        """Restart the sites that do not answer."""
        for server in self.servers:
            self.failures[server.name] = 0 if server.answers() else self.failures[server.name] + 1
            if self.failures[server.name] >= FAILURES:
                logger.warning("%s does not answer and is started anew", server.name)
                self.restart(server)

    def restart(self, server: Server) -> None:
        """End what is left of a server and start it, the later the more often it has failed."""
        server.stop()
        time.sleep(min(0.1 * 2**server.starts, 10.0))
        server.start()
        self.failures[server.name] = 0


def hold(lock: IO[str]) -> bool:
    """Take the lock of the sites; whether no other process that looks after them has it.

    Who asks whether there is one has a share of the lock for a moment, and is waited for.
    """
    deadline = time.monotonic() + ASKED_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        else:
            return True


def sweep(copies: Path, idle_s: float) -> int:
    """Remove the copies that no request has used for `idle_s` seconds; returns how many."""
    removed = 0
    for copy in copies.iterdir():
        try:
            idle = time.time() - copy.stat().st_mtime
        except FileNotFoundError:  # released meanwhile
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
