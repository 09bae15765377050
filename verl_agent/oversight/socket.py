"""Control socket of a run: WebSocket on a Unix socket in its folder, which takes commands of a person.

It has an event loop in a thread of its own, so that the kill switch works while the run's loop hangs or has not begun.
"""

import asyncio
import json
import logging
import os
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from aiohttp import ClientError, ClientSession, ClientWebSocketResponse, UnixConnector, WSMsgType, web

from verl_agent.errors import AgentError, ConfigError
from verl_agent.oversight.base import Decision
from verl_agent.oversight.control import RunControl, sender_of
from verl_agent.oversight.seat import Seat
from verl_agent.sections import section
from verl_agent.system.kill import kill_run, mark_killed

SOCKET = "control.sock"
"""Name of the socket in the folder of a run. Only its owner may connect (mode 0600)."""
MAX_BYTES = 1 << 20
"""Most bytes of a command."""
IDLE_S = 60.0
"""Seconds in which a connection has to send its command."""
CLOSE_S = 1.0
"""Seconds that open connections have at the end of a run."""
log = logging.getLogger(__name__)

Handler: TypeAlias = Callable[[Mapping[str, Any]], dict[str, Any]]
"""Carries a command out and returns the answer; raises ConfigError to refuse it."""


class _Server:
    """Answers connections, each of which sends one command first.

    Args:
        loop: event loop in which `handle` and `control` are called; None for that of the server.
    """

    def __init__(self, handle: Handler, control: RunControl | None, loop: asyncio.AbstractEventLoop | None) -> None:
        self._handle, self._control, self._loop = handle, control, loop

    async def serve(self, request: web.Request) -> web.WebSocketResponse:
        """Serve one connection."""
        stream = web.WebSocketResponse(max_msg_size=MAX_BYTES)
        await stream.prepare(request)
        with suppress(ConnectionError, TimeoutError):  # the client has gone, or says nothing
            try:
                async with asyncio.timeout(IDLE_S):
                    command = await receive(stream)
                if command is not None:
                    await self._carry_out(stream, {"command": "", **command})
            except AgentError as error:
                await stream.send_json({"error": str(error)})
        return stream

    async def _carry_out(self, stream: web.WebSocketResponse, command: dict[str, Any]) -> None:
        if command["command"] == "attend" and self._control is not None:
            await self._attend(stream, command, self._control)
            return
        if command["command"] != "status":
            log.info("%s sent the command %s", command.get("name") or "a person", command["command"])
        if command["command"] == "end":
            answer = self._handle(command)
            mark_killed()
            answer |= {"killed": kill_run()}
        else:
            answer = await self._in_run(partial(self._handle, command))
        await stream.send_json(answer)

    async def _attend(self, stream: web.WebSocketResponse, command: Mapping[str, Any], control: RunControl) -> None:
        """Serve a person who attends an episode: questions and notices one way, decisions the other."""
        news, own = asyncio.Event(), asyncio.get_running_loop()
        call = partial(control.attend, command.get("episode"), sender_of(command))
        seat: Seat = await self._in_run(partial(call, lambda: _later(own, news.set)))
        listening = asyncio.create_task(self._listen(stream, seat))
        listening.add_done_callback(lambda _: news.set())
        try:
            await stream.send_json({"attending": command.get("episode")})
            while not listening.done():
                while not seat.messages.empty():
                    message = seat.messages.get()
                    await stream.send_json(message)
                    if "ended" in message:
                        return
                await news.wait()
                news.clear()
            listening.result()
        finally:
            listening.cancel()
            _later(self._loop or own, control.leave, seat)

    async def _listen(self, stream: web.WebSocketResponse, seat: Seat) -> None:
        while (answer := await receive(stream)) is not None:
            number = answer.pop("number", None)
            _later(self._loop or asyncio.get_running_loop(), seat.answer, section("answer", Decision, answer), number)

    async def _in_run(self, call: Callable[[], Any]) -> Any:
        """Return the result of a call in the event loop of the run."""

        async def run() -> Any:
            return call()

        if self._loop is None:
            return call()
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(run(), self._loop))


def _later(loop: asyncio.AbstractEventLoop, call: Callable[..., object], *arguments: object) -> None:
    """Call something in an event loop, from any thread, unless the loop has ended."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(call, *arguments)


async def receive(stream: web.WebSocketResponse | ClientWebSocketResponse) -> dict[str, Any] | None:
    """Return the next message; None if the other side has closed the connection.

    Raises:
        ConfigError: the message is no JSON object, or the other side refuses the last one.
    """
    received = await stream.receive()
    if received.type is not WSMsgType.TEXT:
        return None
    try:
        message = json.loads(received.data)
    except ValueError as error:
        raise ConfigError(f"a message is no JSON: {error}.") from error
    if not isinstance(message, dict):
        raise ConfigError("a message is no JSON object.")
    if "error" in message:
        raise ConfigError(str(message["error"]))
    return message


@contextmanager
def controlled(folder: Path, control: RunControl) -> Iterator[None]:
    """Let a person control the run in `folder` while the block runs; call it in the event loop of its episodes."""
    with control_socket(folder, control.handle, control, asyncio.get_running_loop()):
        yield


@contextmanager
def control_socket(
    folder: Path,
    handle: Handler,
    control: RunControl | None = None,
    loop: asyncio.AbstractEventLoop | None = None,
) -> Iterator[None]:
    """Take commands at the socket in the folder of a run while the block runs.

    The command `end` is carried out here: it ends every process of the run within seconds, also if the run's event loop
    hangs.

    Args:
        handle: carries out the other commands. It also gets `end` before the processes are ended, in another thread.
        control: has the episodes that a person may attend; None to refuse that.
        loop: event loop of the run; None to call `handle` in the thread of the socket.
    """
    if _is_served(folder):  # another run is active in the folder, which refuses this one
        yield
        return
    path, own = folder / SOCKET, asyncio.new_event_loop()
    path.unlink(missing_ok=True)  # of a run that was killed
    app = web.Application()
    app.router.add_get("/", _Server(handle, control, loop).serve)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=CLOSE_S)
    thread = threading.Thread(target=own.run_forever, daemon=True)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(_listen(runner, folder), own).result()
        yield
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), own).result()
        own.call_soon_threadsafe(own.stop)
        thread.join()
        own.close()
        path.unlink(missing_ok=True)


async def _listen(runner: web.AppRunner, folder: Path) -> None:
    """Listen at a socket that only its owner may use from the beginning on."""
    await runner.setup()
    with _directory(folder) as directory:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(f"{directory}/{SOCKET}")
        (folder / SOCKET).chmod(0o600)  # nobody can connect before `listen`
        await web.SockSite(runner, listener).start()


def _is_served(folder: Path) -> bool:
    with suppress(OSError), _directory(folder) as directory, socket.socket(socket.AF_UNIX) as stream:
        stream.connect(f"{directory}/{SOCKET}")
        return True
    return False


@contextmanager
def _directory(folder: Path) -> Iterator[str]:
    """Yield a short path of a folder: the address of a Unix socket has at most 107 bytes."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


@asynccontextmanager
async def connect_to_run(folder: Path) -> AsyncIterator[ClientWebSocketResponse]:
    """Connect to the control socket of a run.

    Raises:
        ConfigError: no run is active in the folder, or it belongs to another user; or the run ends in the block.
    """
    if not folder.is_dir():
        raise ConfigError(f"{folder} is no folder of a run.")
    with _directory(folder) as directory:
        async with ClientSession(connector=UnixConnector(f"{directory}/{SOCKET}")) as session:
            try:
                stream = await session.ws_connect("ws://run/", max_msg_size=0)
            except (ClientError, OSError) as error:
                if isinstance(error, PermissionError) or isinstance(error.__cause__, PermissionError):
                    whose = f"{folder / SOCKET} belongs to another user, who alone may control the run."
                    raise ConfigError(whose) from error
                raise ConfigError(
                    f"no run is active in {folder}. Name the folder of a running train, eval or play."
                ) from error
            try:
                async with stream:
                    yield stream
            except OSError as error:
                raise ConfigError(f"the run in {folder} closed the connection: {error}.") from error


def send_command(folder: Path, command: Mapping[str, Any], timeout_s: float = 30.0) -> dict[str, Any]:
    """Send one command to a run and return its answer. Not to be called in a running event loop.

    Raises:
        ConfigError: no run is active in the folder, the run refuses the command, or does not answer.
    """

    async def ask() -> dict[str, Any] | None:
        async with asyncio.timeout(timeout_s), connect_to_run(folder) as stream:
            await stream.send_json(command)
            return await receive(stream)

    try:
        answer = asyncio.run(ask())
    except TimeoutError:
        raise ConfigError(f"the run in {folder} did not answer within {timeout_s:g} s.") from None
    if answer is None:
        raise ConfigError(f"the run in {folder} ended before it answered.")
    return answer
