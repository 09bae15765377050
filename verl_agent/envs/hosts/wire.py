"""Messages between a pool and its host process: pickles with a length of eight bytes before each."""

import asyncio
import pickle
import struct
from typing import Any

from verl_agent.errors import EnvError

LENGTH = struct.Struct("!Q")
MAX_BYTES = 16 * 2**20
"""Largest message in bytes; a larger action or observation ends its episode."""


def frame(message: object) -> bytes:
    """Return a message as bytes.

    Raises:
        EnvError: the message cannot be pickled, or is too large.
    """
    try:
        body = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    except Exception as error:  # boundary: the message holds the adapter's objects
        raise EnvError(f"a message cannot be sent between processes: {type(error).__name__}: {error}") from error
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
