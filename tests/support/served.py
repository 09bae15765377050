"""Servers in child processes, and the resources that such a process and its descendants use."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import psutil

from tests import ROOT

SERVE = "from verl_agent.commands.cli import app; app()"
END_S = 60.0


@dataclass(frozen=True, slots=True)
class Usage:
    """Resources of a process and its descendants.

    Attributes:
        pss_mb: proportional memory (PSS) in MiB; shared memory is divided among the processes.
        files: number of open file handles.
        threads: number of threads.
        processes: number of processes.
    """

    pss_mb: float
    files: int
    threads: int
    processes: int


class Server:
    """Server in a child process."""

    def __init__(self, process: psutil.Process, url: str) -> None:
        self.process, self.url = process, url

    def family(self) -> list[psutil.Process]:
        return [self.process, *self.process.children(recursive=True)]

    def usage(self) -> Usage:
        """Return the resources that all processes use now."""
        usages = []
        for process in self.family():
            with suppress(psutil.NoSuchProcess):
                pss_mb = process.memory_full_info().pss / 2**20
                usages.append((pss_mb, process.num_fds(), process.num_threads(), 1))
        pss_mb, files, threads, processes = map(sum, zip(*usages, strict=True))
        return Usage(pss_mb, int(files), int(threads), int(processes))


@contextmanager
def started(command: Sequence[str]) -> Iterator[Server]:
    """Run a server in a context. Its command must print the URL in one of the first lines."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1", "COLUMNS": "200"}
    process = subprocess.Popen(
        command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None
    try:
        line = next((line for line in process.stdout if "http://" in line), "")
        assert line, f"{' '.join(command)} ended with {process.wait()} before it listened"
        url = next(word for word in line.split() if word.startswith("http://")).rstrip(":")
        yield Server(psutil.Process(process.pid), url)
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def serve_command(env: str, *options: str) -> list[str]:
    """Return the command of `verl-agent serve` at a free port."""
    return [sys.executable, "-c", SERVE, "serve", env, "--port", "0", *options]
