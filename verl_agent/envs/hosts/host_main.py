"""Main function of a host process: answers the calls of its pool over a socket until the socket is closed.

The socket is one end of a pair that no other process can open. The operating system closes it when the pool's process
ends for any reason, so a host never outlives its pool. Its keeper (`ProcessTree`) ends what adapters have left. A timer
ends a host whose interpreter hangs.
"""

import asyncio
import faulthandler
import os
import resource
import signal
import socket
from dataclasses import dataclass
from typing import Any

from verl_agent.envs.base import EnvAdapter, Hosting
from verl_agent.envs.hosts.host import CallLimits, Host
from verl_agent.envs.hosts.link import answer_call, encode, read_frame
from verl_agent.envs.machine.memory import MemoryGauge
from verl_agent.envs.session import in_background
from verl_agent.errors import EnvError, describe_exception
from verl_agent.terminal import guard_output

EXIT_S = 20.0
"""Most seconds for closing the sessions and leaving the interpreter."""


@dataclass(frozen=True, slots=True)
class Setup:
    """First message to a host process.

    Attributes:
        env: the environment; pickled as its class name and its options.
        frozen_s: seconds without progress of its event loop after which the process ends itself.
    """

    env: EnvAdapter
    hosting: Hosting
    limits: CallLimits
    frozen_s: float


def main(descriptor: int) -> None:
    """Run a host."""
    guard_output()
    _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))  # a thread with an event loop takes three
    asyncio.run(_serve(descriptor))


async def _serve(descriptor: int) -> None:
    reader, writer = await asyncio.open_connection(sock=socket.socket(fileno=descriptor))
    try:
        setup: Setup = await read_frame(reader)
        host = Host(setup.env, setup.hosting, setup.limits, MemoryGauge())
    except Exception as error:  # boundary: unpickling imports the adapter's module and runs its constructor
        writer.write(encode(EnvError(f"the environment does not start: {describe_exception(error)}")))
        await writer.drain()
        return
    writer.write(encode(os.getpid()))
    timer = asyncio.create_task(_reset_timer(setup.frozen_s))
    answering = asyncio.create_task(_answer_all(host, reader, writer))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, answering.cancel)
    await asyncio.wait([answering])
    timer.cancel()
    faulthandler.dump_traceback_later(EXIT_S, exit=True)
    await host.shutdown()


async def _answer_all(host: Host, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer calls concurrently until the pool sends None or closes the socket."""
    running: set[asyncio.Task[None]] = set()
    while True:
        try:
            request = await read_frame(reader)
        except (asyncio.IncompleteReadError, OSError):
            return
        if request is None:
            return
        in_background(_answer(host, writer, *request), running)


async def _answer(
    host: Host, writer: asyncio.StreamWriter, number: int, method: str, arguments: tuple[Any, ...]
) -> None:
    try:
        reply = encode((number, await answer_call(host, method, arguments)))
    except EnvError as error:  # the answer is too large
        reply = encode((number, error))
    if not writer.is_closing():
        writer.write(reply)


async def _reset_timer(frozen_s: float) -> None:
    """Restart the timer as long as this loop runs. The timer is a C thread, so it ends a process that hangs."""
    while True:
        faulthandler.dump_traceback_later(frozen_s, exit=True)
        await asyncio.sleep(frozen_s / 4)
