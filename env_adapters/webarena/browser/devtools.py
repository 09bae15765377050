"""DevTools pipe of a browser, which Playwright's driver and this process share.

Playwright's driver parses each message and sends it on to Python, where it is parsed again. This takes 2 ms of CPU time
for a small command and 25 ms for the nodes of a page. Here the driver is started with a browser command that hands over
the pipe (`handover.py`). The pipe forwards the driver's messages without parsing them. This process opens its own
sessions on the pipe; the driver does not see them.
"""

import asyncio
import json
import logging
import socket
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec
from playwright.async_api import Error

from env_adapters.webarena.browser.pipe_ends import END, End, Splitter

T = TypeVar("T")
Handler = Callable[[dict[str, Any]], None]
FIRST_ID = 2**30
"""First id of this process's commands; the driver counts from 1."""
REPLY_START = b'{"id":'
EVENT_START = b'{"method":"'
DETACHED_START = EVENT_START + b'Target.detachedFromTarget"'
SESSION_FIELD = b'"sessionId":"'
"""Last field of each message of a session."""
SESSION_TAIL = 100
"""Bytes at the end of a message that contain this field."""
CLOSED = "the page or its browser has been closed"
log = logging.getLogger(__name__)


class ErrorReply(msgspec.Struct):
    """Error of a command."""

    message: str


class Reply(msgspec.Struct, Generic[T]):
    """Response to a command.

    Attributes:
        result: result of the command; None if it has failed.
        error: error of the command; None if it has succeeded.
    """

    id: int
    result: T | None = None
    error: ErrorReply | None = None


class Attached(msgspec.Struct):
    """Session with a target."""

    session_id: str = msgspec.field(name="sessionId")


class Event(msgspec.Struct, Generic[T]):
    """Event of a session."""

    params: T


class DevToolsSession:
    """Session with one target of a browser, for example a page.

    Args:
        pipe: pipe of the browser.
        session_id: id of the session.
    """

    def __init__(self, pipe: "DevToolsPipe", session_id: str) -> None:
        self._pipe, self._id = pipe, session_id

    def on(self, event: str, handler: Handler) -> None:
        """Call `handler` with the parameters of each event of this name."""
        self._pipe.handle(self._id, event, handler)

    async def send(self, method: str, result_type: type[T], /, **parameters: Any) -> T:
        """Send a command and return its result.

        Args:
            method: name of the command.
            result_type: type of the result; a struct of `msgspec` is decoded without its other fields.
            parameters: parameters of the command.

        Raises:
            Error: the command failed, or the target has closed.
        """
        return await self._pipe.send(method, result_type, parameters, self._id)

    def detach(self) -> None:
        """End the session, without waiting for the browser."""
        self._pipe.detach(self._id)


class DevToolsPipe:
    """DevTools pipe between one browser and Playwright's driver. Use it on one event loop only."""

    def __init__(self) -> None:
        self._commands, self._browser, self._events = End(), End(), End()
        self._last_id = FIRST_ID
        self._replies: dict[int, tuple[str, asyncio.Future[bytes]]] = {}
        self._decoders: dict[Any, msgspec.json.Decoder[Any]] = {}
        self._root = ""
        self._sessions: dict[str, dict[str, Handler]] = {}
        self._parts: list[bytes] = []

    async def connect(self, driver: tuple[socket.socket, socket.socket], browser: socket.socket) -> None:
        """Start to forward messages. The pipe owns the sockets from then on, also after an error.

        Args:
            driver: connection for the driver's commands, and that for the messages to it.
            browser: connection for the browser's messages and the commands to it.
        """
        self._browser.receive, self._browser.source = self._route, self._commands
        self._events.source = self._browser
        pending = Splitter(self._browser.write)
        self._commands.receive = pending.feed
        loop = asyncio.get_running_loop()
        ends = ((self._events, driver[1]), (self._browser, browser), (self._commands, driver[0]))
        connected = False
        try:
            for end, connection in ends:
                end.closed = self.close
                await loop.create_connection(lambda end=end: end, sock=connection)  # type: ignore[misc]
            connected = True
        finally:
            if not connected or self.closed:  # the browser may have ended before the last connection was made
                self.close()
                for end, connection in ends:
                    if not end.connected:
                        connection.close()

    @property
    def closed(self) -> bool:
        """True after the end of the browser; the driver may notice it later."""
        return self._browser.lost

    async def attach(self, target_id: str) -> DevToolsSession:
        """Return a session with a target.

        Raises:
            Error: there is no such target.
        """
        if not self._root:
            self._root = (await self.send("Target.attachToBrowserTarget", Attached)).session_id
            self._sessions[self._root] = {}
        parameters = {"targetId": target_id, "flatten": True}
        attached = await self.send("Target.attachToTarget", Attached, parameters, self._root)
        self._sessions[attached.session_id] = {}
        return DevToolsSession(self, attached.session_id)

    def detach(self, session_id: str) -> None:
        """End a session, fail its commands, and tell the browser so without waiting for it."""
        if self._sessions.pop(session_id, None) is None:
            return
        self._fail(session_id)
        if session_id == self._root:
            self._root = ""
        else:
            self._write("Target.detachFromTarget", {"sessionId": session_id}, self._root)

    def handle(self, session_id: str, event: str, handler: Handler) -> None:
        """Call `handler` with the parameters of each such event of a session."""
        self._sessions.get(session_id, {})[event] = handler

    async def send(
        self, method: str, result_type: type[T], parameters: dict[str, Any] | None = None, session_id: str = ""
    ) -> T:
        """Send a command in a session, or without one, and return its result; see `DevToolsSession.send`."""
        if self.closed or (session_id and session_id not in self._sessions):
            raise Error(f"{method}: {CLOSED}")
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        number = self._write(method, parameters or {}, session_id)
        self._replies[number] = session_id, future
        try:
            message = await future
        finally:
            self._replies.pop(number, None)
        reply: Reply[T] = self._decode(message, Reply[result_type])  # type: ignore[valid-type]
        if reply.error is not None or reply.result is None:
            raise Error(f"{method}: {reply.error.message if reply.error else 'no result'}")
        return reply.result

    def close(self) -> None:
        """Close all connections and fail all commands; the browser then ends, and the driver notices it."""
        self._sessions.clear()
        self._fail("")
        for end in (self._commands, self._browser, self._events):
            end.close()

    def _write(self, method: str, parameters: dict[str, Any], session_id: str) -> int:
        """Write a command and return its id."""
        self._last_id += 1
        command: dict[str, Any] = {"id": self._last_id, "method": method, "params": parameters}
        if session_id:
            command["sessionId"] = session_id
        self._browser.write(msgspec.json.encode(command) + END)
        return self._last_id

    def _route(self, data: bytes) -> None:
        """Forward messages of the browser to the driver, except those of own sessions."""
        first, *others = data.split(END)
        self._parts.append(first)
        forwarded = []
        for rest in others:
            message = b"".join(self._parts)
            self._parts = [rest]
            if not self._take(message):
                forwarded += [message, END]
        if forwarded:
            self._events.write(b"".join(forwarded))

    def _take(self, message: bytes) -> bool:
        """Return True if a message is for this process, after handling it."""
        if message.startswith(REPLY_START):
            digits = message[len(REPLY_START) : message.find(b",")]
            number = int(digits) if digits.isdigit() else 0
            _, future = self._replies.get(number, ("", None))
            if future is not None and not future.done():
                future.set_result(message)
            return number >= FIRST_ID
        start = message.rfind(SESSION_FIELD, max(0, len(message) - SESSION_TAIL))
        session_id = message[start + len(SESSION_FIELD) : -len(b'"}')].decode("latin-1") if start >= 0 else ""
        if session_id not in self._sessions:
            return False
        try:
            self._handle_event(session_id, message)
        except Exception:  # boundary: pages influence events, and asyncio would close the pipe of all sessions
            log.exception("an event of a page ends its session: %.200r", message)
            self.detach(session_id)
        return True

    def _handle_event(self, session_id: str, message: bytes) -> None:
        if message.startswith(DETACHED_START):
            ended = self._decode(message, Event[Attached]).params.session_id
            self._sessions.pop(ended, None)
            self._fail(ended)
        elif message.startswith(EVENT_START):
            name = message[len(EVENT_START) : message.index(b'"', len(EVENT_START))].decode()
            if handler := self._sessions[session_id].get(name):
                handler(self._decode(message, Event[dict[str, Any]]).params)

    def _decode(self, message: bytes, message_type: Any) -> Any:
        """Decode a message; a text of a page may contain half of a surrogate pair, which only `json` accepts."""
        if message_type not in self._decoders:
            self._decoders[message_type] = msgspec.json.Decoder(message_type)
        try:
            return self._decoders[message_type].decode(message)
        except msgspec.ValidationError:
            raise
        except msgspec.DecodeError:
            return msgspec.convert(json.loads(message), message_type)

    def _fail(self, session_id: str) -> None:
        """Fail the commands of a session, or of all sessions if the id is ""."""
        for owner, future in self._replies.values():
            if session_id in ("", owner) and not future.done():
                future.set_exception(Error(CLOSED))
