"""A host in a process of its own, started afresh (never forked) and spoken to over a pair of sockets."""

import asyncio
import itertools
import json
import logging
import os
import pickle
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import psutil

from verl_agent.envs.base import EnvAdapter, Hosting
from verl_agent.envs.hosts.host import CallLimits
from verl_agent.envs.hosts.host_main import Setup
from verl_agent.envs.hosts.wire import frame, read_frame
from verl_agent.errors import AgentError, ConfigError, HostLostError

BOOT = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[2]); "
    "from verl_agent.envs.hosts.host_main import main; main(int(sys.argv[1]))"
)
"""Runs the child with the search path of this process, which may know more than its environment says."""
END_S = 10.0
"""Seconds that a host has to close its sessions and end before it is killed."""
POLL_S = 0.02
log = logging.getLogger(__name__)


class ProcessLink:
    """A host process. Made by `start_process`."""

    def __init__(self, process: "subprocess.Popen[bytes]", stream: socket.socket) -> None:
        self._process, self._stream = process, stream
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._lost = ""
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int:
        """Of the process, which leads a process group of its own."""
        return self._process.pid

    async def begin(self, setup: bytes) -> None:
        """Send the first frame and wait until the host is ready.

        Raises:
            HostLostError: it ended at once.
            EnvError: it could not import the adapter.
        """
        reader, self._writer = await asyncio.open_connection(sock=self._stream)
        self._writer.write(setup)
        try:
            refusal = await read_frame(reader)
        except (asyncio.IncompleteReadError, OSError) as error:
            raise HostLostError(f"the host process {self.pid} ended while it started; see the log.") from error
        if refusal is not None:
            raise refusal
        self._reading = asyncio.create_task(self._read(reader))

    async def call(self, method: str, *arguments: Any) -> Any:
        """See `HostLink.call`."""
        if self._lost or self._writer is None:
            raise HostLostError(self._lost or "the host has not begun.")
        number = next(self._numbers)
        sent = frame((number, method, arguments))
        self._waiting[number] = asyncio.get_running_loop().create_future()
        self._writer.write(sent)
        try:
            answer = await self._waiting[number]
        finally:
            del self._waiting[number]
        if isinstance(answer, AgentError):
            raise answer
        return answer

    async def end(self, why: str) -> None:
        """See `HostLink.end`."""
        self._lose(why)
        if self._reading is not None:
            self._reading.cancel()
        if self._writer is not None:
            self._writer.write(frame(None))  # it closes its sessions, and ends
        (self._writer or self._stream).close()
        if self._process.returncode is not None:
            return
        with suppress(psutil.NoSuchProcess, ProcessLookupError, PermissionError):
            process = psutil.Process(self.pid)
            await wait_until(lambda: process.status() == psutil.STATUS_ZOMBIE)
            os.killpg(self.pid, signal.SIGKILL)  # what it left behind too; its number is not free before it is reaped
        await wait_until(lambda: self._process.poll() is not None)
        if self._process.returncode:
            log.warning("the host process %d ended with %d", self.pid, self._process.returncode)

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                number, answer = await read_frame(reader)
                waiting = self._waiting.get(number)
                if waiting is not None and not waiting.done():  # else its caller was cancelled
                    waiting.set_result(answer)
        except (asyncio.IncompleteReadError, OSError):
            self._lose(f"the host process {self.pid} died.")
        except Exception as error:  # an answer that this process cannot read; nobody may wait for it for ever
            self._lose(f"the host process {self.pid} sent what cannot be read: {type(error).__name__}: {error}")

    def _lose(self, why: str) -> None:
        self._lost = self._lost or why
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(HostLostError(self._lost))


async def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for what nobody announces, for `END_S` at most."""
    for _ in range(int(END_S / POLL_S)):
        if condition():
            return
        await asyncio.sleep(POLL_S)


async def start_process(env: EnvAdapter, hosting: Hosting, limits: CallLimits, frozen_s: float) -> ProcessLink:
    """Start a host process for one environment.

    Args:
        env: the environment; its class must be importable by name.
        hosting: what it may hold.
        limits: of calls.
        frozen_s: seconds without a sign of its event loop after which it ends itself.

    Raises:
        ConfigError: the class or its options cannot be sent to another process.
        HostLostError: it ended at once.
        EnvError: it could not import the adapter.
    """
    setup = packed(Setup(env, hosting, limits, frozen_s))
    ours, theirs = socket.socketpair()
    with theirs:
        path = json.dumps([entry or os.getcwd() for entry in sys.path])
        command = [sys.executable, "-c", BOOT, str(theirs.fileno()), path, type(env).__qualname__]
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], start_new_session=True
        )
    link = ProcessLink(process, ours)
    try:
        await link.begin(setup)
    except BaseException:
        process.kill()
        await asyncio.shield(link.end("the host did not start."))
        raise
    return link


def packed(setup: Setup) -> bytes:
    """The first frame.

    Raises:
        ConfigError: the class or its options cannot be sent to another process.
    """
    adapter = type(setup.env)
    if adapter.__module__ == "__main__":
        raise ConfigError(
            f"{adapter.__qualname__} is defined in the script that runs, where a host process cannot find it. "
            "Move it to a module, or set env.hosts.where=inline."
        )
    try:
        pickle.dumps(setup)
    except Exception as error:
        raise ConfigError(
            f"{adapter.__qualname__} cannot be sent to a host process: {error}. Define it at the top level of a "
            "module, use plain values in env.options, or set env.hosts.where=inline."
        ) from error
    return frame(setup)
