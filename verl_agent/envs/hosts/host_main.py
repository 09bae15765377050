"""The main function of a host process: answer what the pool asks over a socket until it is closed.

The socket is one end of a pair that nobody else can open. It is closed when the pool's process ends, however it
does, so a host never outlives it; a host that cannot notice, because its interpreter hangs, is ended by a timer.
"""

import asyncio
import atexit
import faulthandler
import os
import resource
import signal
import socket
import threading
from dataclasses import dataclass
from typing import Any

from verl_agent.envs.base import EnvAdapter, Hosting
from verl_agent.envs.hosts.host import CallLimits, Host
from verl_agent.envs.hosts.link import answer
from verl_agent.envs.hosts.memory import MemoryGauge
from verl_agent.envs.hosts.wire import frame, read_frame
from verl_agent.errors import EnvError

EXIT_S = 20.0
"""Seconds that closing sessions and leaving the interpreter may take together."""


@dataclass(frozen=True, slots=True)
class Setup:
    """The first frame: what the host is to hold.

    Attributes:
        env: the environment; pickled as its class name and its options.
        hosting: what the host may hold.
        limits: of calls.
        frozen_s: seconds without any sign of its event loop after which the process ends itself.
    """

    env: EnvAdapter
    hosting: Hosting
    limits: CallLimits
    frozen_s: float


def main(descriptor: int) -> None:
    """Be a host.

    Args:
        descriptor: number of the inherited socket.
    """
    orphaned = threading.Event()
    atexit.register(_end_group, orphaned)  # registered first, so it runs last
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a thread with an event loop takes three
    asyncio.run(_serve(descriptor, orphaned))


async def _serve(descriptor: int, orphaned: threading.Event) -> None:
    reader, writer = await asyncio.open_connection(sock=socket.socket(fileno=descriptor))
    try:
        setup: Setup = await read_frame(reader)
        host = Host(setup.env, setup.hosting, setup.limits, MemoryGauge())
    except Exception as error:  # whatever importing the adapter's module raises
        writer.write(frame(EnvError(f"{type(error).__name__}: {error}")))
        await writer.drain()
        return
    writer.write(frame(None))
    timer = asyncio.create_task(_wind_up(setup.frozen_s))
    asked = asyncio.create_task(_answer_all(host, reader, writer, orphaned))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, asked.cancel)
    await asyncio.wait([asked])
    timer.cancel()
    faulthandler.dump_traceback_later(EXIT_S, exit=True)
    await host.shutdown()


async def _answer_all(
    host: Host, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, orphaned: threading.Event
) -> None:
    """Answer side by side until the other side says that it is over, or is gone."""
    running: set[asyncio.Task[None]] = set()
    while True:
        try:
            question = await read_frame(reader)
        except (asyncio.IncompleteReadError, OSError):
            orphaned.set()
            return
        if question is None:
            return
        task = asyncio.create_task(_answer(host, writer, *question))
        running.add(task)
        task.add_done_callback(running.discard)


async def _answer(
    host: Host, writer: asyncio.StreamWriter, number: int, method: str, arguments: tuple[Any, ...]
) -> None:
    try:
        sent = frame((number, await answer(host, method, arguments)))
    except EnvError as error:
        sent = frame((number, error))
    if not writer.is_closing():
        writer.write(sent)


async def _wind_up(frozen_s: float) -> None:
    """Keep the timer from going off as long as this loop runs; it needs no interpreter to end the process."""
    while True:
        faulthandler.dump_traceback_later(frozen_s, exit=True)
        await asyncio.sleep(frozen_s / 4)


def _end_group(orphaned: threading.Event) -> None:
    """End what the adapters started, and with it this process, if nobody else is left to do it."""
    if orphaned.is_set():
        os.killpg(os.getpgrp(), signal.SIGKILL)
