"""A host in a new process, not a fork, and the connection to it over a pair of sockets."""

import asyncio
import itertools
import json
import logging
import os
import pickle
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from typing_extensions import override

from verl_agent.envs.base import EnvAdapter, Hosting
from verl_agent.envs.hosts.host import CallLimits
from verl_agent.envs.hosts.host_main import EXIT_S, Setup
from verl_agent.envs.hosts.link import HostLink, encode, read_frame
from verl_agent.envs.machine.processes import ProcessTree
from verl_agent.envs.machine.proxies import child_environment
from verl_agent.errors import AgentError, ConfigError, HostLostError

BOOT = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[2]); "
    "from verl_agent.envs.hosts.host_main import main; main(int(sys.argv[1]))"
)
"""Code of the child process: takes over `sys.path` of this process, which may differ from its environment."""
END_S = 10.0
"""Seconds that a host has to close its sessions and exit before it is killed."""
POLL_S = 0.02
log = logging.getLogger(__name__)


class ProcessLink(HostLink):
    """Connection to a host process; see `start_process`."""

    def __init__(self, tree: ProcessTree, process: "subprocess.Popen[bytes]", stream: socket.socket) -> None:
        self._tree, self._process, self._stream = tree, process, stream
        self.pid = process.pid
        """Id of the host's process, once it is ready."""
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._lost = ""
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None

    async def begin(self, setup: bytes) -> None:
        """Send the first message and wait until the host is ready."""
        reader, self._writer = await asyncio.open_connection(sock=self._stream)
        self._writer.write(setup)
        try:
            ready = await read_frame(reader)
        except (asyncio.IncompleteReadError, OSError) as error:
            raise HostLostError(f"the host process {self.pid} ended while it started; see the log.") from error
        if isinstance(ready, AgentError):
            raise ready
        self.pid = ready
        self._reading = asyncio.create_task(self._read(reader))

    @override
    async def call(self, method: str, *arguments: Any) -> Any:
        if self._lost or self._writer is None:
            raise HostLostError(self._lost or "the host has not started.")
        number = next(self._numbers)
        request = encode((number, method, arguments))
        self._waiting[number] = asyncio.get_running_loop().create_future()
        self._writer.write(request)
        try:
            answer = await self._waiting[number]
        finally:
            del self._waiting[number]
        if isinstance(answer, AgentError):
            raise answer
        return answer

    @override
    async def end(self, reason: str) -> None:
        self._fail_calls(reason)
        if self._reading is not None:
            self._reading.cancel()
        if self._writer is not None:
            self._writer.write(encode(None))  # the host closes its sessions and exits
        (self._writer or self._stream).close()
        if self._process.returncode is not None:
            return
        await wait_until(lambda: self._process.poll() is not None)
        await asyncio.to_thread(self._tree.end_now, self._process)
        if self._process.returncode:
            log.warning("the host process %d ended with %d", self.pid, self._process.returncode)

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                number, answer = await read_frame(reader)
                waiting = self._waiting.get(number)
                if waiting is not None and not waiting.done():  # otherwise the caller was cancelled
                    waiting.set_result(answer)
        except (asyncio.IncompleteReadError, OSError):
            self._fail_calls(f"the host process {self.pid} died.")
        except Exception as error:  # boundary: this process cannot unpickle the answer, and its caller waits
            self._fail_calls(f"an answer of the host process {self.pid} is unreadable: {type(error).__name__}: {error}")

    def _fail_calls(self, reason: str) -> None:
        """Raise `HostLostError` in all pending calls."""
        self._lost = self._lost or reason
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(HostLostError(self._lost))


async def wait_until(condition: Callable[[], bool]) -> None:
    """Poll `condition` until it holds, for at most `END_S`."""
    for _ in range(int(END_S / POLL_S)):
        if condition():
            return
        await asyncio.sleep(POLL_S)


async def start_process(env: EnvAdapter, hosting: Hosting, limits: CallLimits, frozen_s: float) -> ProcessLink:
    """Start a host process.

    Raises:
        ConfigError: the class or its options cannot be pickled.
        HostLostError: the process ended at once.
        EnvError: it could not import or construct the adapter.
    """
    setup = packed(Setup(env, hosting, limits, frozen_s))
    own_end, child_end = socket.socketpair()
    with child_end:
        path = json.dumps([entry or os.getcwd() for entry in sys.path])
        command = [sys.executable, "-c", BOOT, str(child_end.fileno()), path, type(env).__qualname__]
        tree = ProcessTree(grace_s=EXIT_S)
        process = subprocess.Popen(
            tree.command(command),
            env=tree.environment(child_environment(os.environ)),
            stdin=subprocess.DEVNULL,
            pass_fds=[child_end.fileno()],
            start_new_session=True,
        )
    link = ProcessLink(tree, process, own_end)
    try:
        await link.begin(setup)
    except BaseException:
        tree.kill(process)
        await asyncio.shield(link.end("the host did not start."))
        raise
    return link


def packed(setup: Setup) -> bytes:
    """Return the first message as bytes."""
    if problem := unpicklable(setup.env):
        raise ConfigError(
            f"{type(setup.env).__qualname__} cannot be sent to a host process: {problem}. Define it at the top level "
            "of a module, use plain values in env.options, or set env.hosts.where=inline."
        )
    return encode(setup)


def unpicklable(env: EnvAdapter) -> str:
    """Return the reason why an environment cannot travel to another process, or ""."""
    if type(env).__module__ == "__main__":
        return "the class is defined in the script that runs"
    try:
        pickle.dumps(env)
    except Exception as error:  # boundary to the adapter: its class and its options may raise anything
        return str(error).rstrip(".") or type(error).__name__
    return ""
