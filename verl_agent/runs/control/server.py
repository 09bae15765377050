"""Control socket of a run: a Unix socket in its folder that takes commands as lines of JSON."""

import json
import logging
import os
import select
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from verl_agent.errors import AgentError, ConfigError
from verl_agent.runs.processes import kill_run
from verl_agent.runs.subprocess_run import mark_killed

SOCKET = "control.sock"
"""Name of the socket in the folder of a run. Only its owner may connect (mode 0600)."""
MAX_LINE = 1 << 20
"""Most bytes of a command."""
IDLE_S = 60.0
"""Seconds in which a connection has to send its command."""
log = logging.getLogger(__name__)

Handler = Callable[[Mapping[str, Any]], dict[str, Any]]
"""Carries a command out and returns the answer; raises ConfigError to refuse it. Called in the connection's thread."""


class ControlConnection:
    """One connection of a client: lines of JSON in both directions."""

    def __init__(self, stream: socket.socket) -> None:
        self._stream, self._received = stream, b""

    def send(self, message: Mapping[str, Any]) -> None:
        """Send one message."""
        self._stream.sendall(json.dumps(message).encode() + b"\n")

    def receive(self, timeout_s: float | None) -> dict[str, Any] | None:
        """Return the next message; None if the other side has closed the connection.

        Raises:
            TimeoutError: no message arrived in time.
            ConfigError: the message is no JSON object, or too long.
        """
        self._stream.settimeout(timeout_s)
        while b"\n" not in self._received:
            part = self._stream.recv(65536)
            if not part:
                return None
            self._received += part
            if len(self._received) > MAX_LINE:
                raise ConfigError(f"a message has more than {MAX_LINE} bytes.")
        line, _, self._received = self._received.partition(b"\n")
        try:
            message = json.loads(line)
        except ValueError as error:
            raise ConfigError(f"a message is no JSON: {error}.") from error
        if not isinstance(message, dict):
            raise ConfigError("a message is no JSON object.")
        return message

    @property
    def ready(self) -> bool:
        """True if `receive` does not wait: something has arrived, or the other side has closed the connection."""
        return b"\n" in self._received or bool(select.select([self._stream], [], [], 0)[0])

    @property
    def closed(self) -> bool:
        """True if the other side has closed the connection."""
        self._stream.setblocking(False)
        try:
            return self._stream.recv(1, socket.MSG_PEEK) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    block_on_close = False


@contextmanager
def control_socket(
    folder: Path, handle: Handler, attend: Callable[[ControlConnection, Mapping[str, Any]], None] | None = None
) -> Iterator[None]:
    """Take commands at the socket in the folder of a run while the block runs.

    The command `end` is carried out here: it ends every process of the run within seconds, also if the run's event loop
    hangs.

        handle: carries out the other commands. It also gets `end` before the processes are ended.
        attend: serves a connection on which a person attends an episode; None to refuse.
    """

    class Serve(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            connection = ControlConnection(self.request)
            try:
                command = connection.receive(IDLE_S)
                if command is None:
                    return
                if command.setdefault("command", "") == "attend" and attend is not None:
                    attend(connection, command)
                    return
                if command["command"] != "status":
                    log.info("%s sent the command %s", command.get("name") or "a person", command["command"])
                answer = handle(command)
                if command["command"] == "end":
                    mark_killed()
                    answer |= {"killed": kill_run()}
                connection.send(answer)
            except AgentError as error:
                with suppress(OSError):
                    connection.send({"error": str(error)})
            except OSError:  # the client has gone
                return

    path = folder / SOCKET
    if _is_served(folder):  # another run is active in the folder, which refuses this one
        yield
        return
    path.unlink(missing_ok=True)  # of a run that was killed
    with _directory(folder) as directory:
        server = _Server(f"{directory}/{SOCKET}", Serve, bind_and_activate=False)
        server.server_bind()
        path.chmod(0o600)  # nobody can connect before `listen`
        server.server_activate()
    thread = threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        path.unlink(missing_ok=True)


def _is_served(folder: Path) -> bool:
    try:
        connect_to_run(folder).close()
    except ConfigError:
        return False
    return True


@contextmanager
def _directory(folder: Path) -> Iterator[str]:
    """Yield a short path of a folder: the address of a Unix socket has at most 107 bytes."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def connect_to_run(folder: Path) -> socket.socket:
    """Connect to the control socket of a run.

    Raises:
        ConfigError: no run is active in the folder, or it belongs to another user.
    """
    if not folder.is_dir():
        raise ConfigError(f"{folder} is no folder of a run.")
    stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _directory(folder) as directory:
            stream.connect(f"{directory}/{SOCKET}")
    except OSError as error:
        stream.close()
        if isinstance(error, PermissionError):
            raise ConfigError(f"{folder / SOCKET} belongs to another user, who alone may control the run.") from error
        raise ConfigError(f"no run is active in {folder}. Name the folder of a running train, eval or play.") from error
    return stream


def send_command(folder: Path, command: Mapping[str, Any], timeout_s: float = 30.0) -> dict[str, Any]:
    """Send one command to a run and return its answer.

    Raises:
        ConfigError: no run is active in the folder, the run refuses the command, or does not answer.
    """
    with connect_to_run(folder) as stream:
        connection = ControlConnection(stream)
        try:
            connection.send(command)
            answer = connection.receive(timeout_s)
        except TimeoutError:
            raise ConfigError(f"the run in {folder} did not answer within {timeout_s:g} s.") from None
        except OSError as error:
            raise ConfigError(f"the run in {folder} closed the connection: {error}.") from error
    if answer is None:
        raise ConfigError(f"the run in {folder} ended before it answered.")
    if "error" in answer:
        raise ConfigError(str(answer["error"]))
    return answer
