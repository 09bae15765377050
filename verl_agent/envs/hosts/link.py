"""Connection of a pool to one host: in the pool's own process, or by pickles, each after its length in eight bytes."""

import asyncio
import logging
import pickle
import struct
from dataclasses import replace
from typing import Any, Protocol

from typing_extensions import override

from verl_agent.envs.base import EnvAdapter, Hosting
from verl_agent.envs.hosts.host import CallLimits, Host
from verl_agent.errors import AgentError, EnvError

log = logging.getLogger(__name__)


class HostLink(Protocol):
    """Connection to a running host."""

    async def call(self, method: str, *arguments: Any) -> Any:
        """Call a method of `Host`.

        Raises:
            HostLostError: the host is dead.
            AgentError: the error that the method raised.
        """
        ...

    async def end(self, reason: str) -> None:
        """Ask the host to close its sessions, then stop it. A dead host is ignored.

        Pending calls raise `HostLostError` with the reason.
        """
        ...


async def answer_call(host: Host, method: str, arguments: tuple[Any, ...]) -> Any:
    """Call a method of `host` and return its result or its error; other processes can unpickle both."""
    try:
        return await getattr(host, method)(*arguments)
    except AgentError as error:
        return error
    except Exception as error:  # boundary of the host: without an answer the caller would wait forever
        log.exception("%s failed", method)
        return EnvError(f"{method} failed in its host: {type(error).__name__}: {error}")


class InlineLink(HostLink):
    """Connection to a host in this process."""

    def __init__(self, env: EnvAdapter, hosting: Hosting, limits: CallLimits) -> None:
        # With threads=0 calls would block the pool's loop, which belongs to the caller.
        threaded = hosting if hosting.threads else replace(hosting, threads=None)
        self._host = Host(env, threaded, limits)

    @override
    async def call(self, method: str, *arguments: Any) -> Any:
        return await getattr(self._host, method)(*arguments)

    @override
    async def end(self, reason: str) -> None:
        """Pending calls raise `UnknownSessionError`."""
        await self._host.shutdown()


LENGTH = struct.Struct("!Q")
MAX_BYTES = 16 * 2**20
"""Largest message in bytes; a larger action or observation ends its episode."""


def encode(message: object) -> bytes:
    """Return a message as bytes; it holds the values of this package and of Python alone, see `CheckedSession`."""
    body = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    if len(body) > MAX_BYTES:
        raise EnvError(f"a message has {len(body):,} bytes; at most {MAX_BYTES:,} are sent between processes.")
    return LENGTH.pack(len(body)) + body


async def read_frame(reader: asyncio.StreamReader) -> Any:
    """Return the next message.

    Raises:
        asyncio.IncompleteReadError, OSError: the other process closed the connection.
    """
    (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
    return pickle.loads(await reader.readexactly(length))
