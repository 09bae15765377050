"""Connections of a DevTools pipe, with flow control, and the joining of the messages of two senders."""

import asyncio
from collections.abc import Callable

END = b"\0"
"""End of a message."""


class Splitter:
    """Collects bytes and passes on whole messages, so that messages of two senders do not mix."""

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self._write, self._rest = write, b""

    def feed(self, data: bytes) -> None:
        whole, end, rest = data.rpartition(END)
        if end:
            self._write(self._rest + whole + end)
            self._rest = rest
        else:
            self._rest += data


class End(asyncio.Protocol):
    """One connection of the pipe. It stops reading from `source` while its own buffer is full."""

    def __init__(self) -> None:
        self.receive: Callable[[bytes], None] = lambda data: None
        self.closed: Callable[[], None] = lambda: None
        self.source: End | None = None
        self.lost = False
        self._transport: asyncio.Transport | None = None

    @property
    def connected(self) -> bool:
        """True once a transport owns the socket."""
        return self._transport is not None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self.receive(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        self.closed()

    def pause_writing(self) -> None:
        if self.source is not None and self.source._transport is not None:
            self.source._transport.pause_reading()

    def resume_writing(self) -> None:
        if self.source is not None and self.source._transport is not None:
            self.source._transport.resume_reading()

    def write(self, data: bytes) -> None:
        if self._transport is not None and not self.lost:
            self._transport.write(data)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
