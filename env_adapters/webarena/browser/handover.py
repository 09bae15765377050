"""Start of a browser by Playwright's driver, which hands the DevTools pipe over to this process."""

import asyncio
import os
import shlex
import socket
import stat
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir

from env_adapters.webarena.browser import handover_program
from env_adapters.webarena.browser.devtools import DevToolsPipe
from verl_agent.errors import ConfigError, EnvError

TIMEOUT_S = 10.0
"""Seconds that the started command may take to send its descriptors."""
MAX_SOCKET_PATH = 107
"""Most bytes of the path of a Unix socket."""


class Handover:
    """Command that starts a browser for the driver and hands its DevTools pipe over to this process.

    Args:
        browser: command that starts the browser.
        folders: folders in one of which the command and its socket can be; the first suitable one is used.

    Raises:
        ConfigError: none of the folders can hold a command and a socket.
    """

    def __init__(self, browser: str, folders: Sequence[str] | None = None) -> None:
        self._open = ExitStack()
        folders = (gettempdir(), "/tmp", "/dev/shm") if folders is None else folders
        reasons = []
        for parent in folders:
            try:
                self.command, self._listener = self._create(Path(parent), browser)
                return
            except OSError as error:
                self._open.close()
                reasons.append(f"{parent}: {error}")
        raise ConfigError(
            f"no folder can hold the command that starts the browser ({'; '.join(reasons)}). Set the environment "
            f"variable TMPDIR to a folder with a path of at most {MAX_SOCKET_PATH - 25} characters, on a file system "
            "that is writable and not mounted with noexec."
        )

    def _create(self, parent: Path, browser: str) -> tuple[Path, socket.socket]:
        folder = Path(self._open.enter_context(TemporaryDirectory(prefix="browser_", dir=parent)))
        command, path = folder / "browser", folder / "pipe"
        if len(os.fsencode(path)) > MAX_SOCKET_PATH:
            raise OSError("the path is too long for a socket")
        arguments = [sys.executable, "-IS", handover_program.__file__, str(path), browser]
        command.write_text(f'#!/bin/sh\nexec {shlex.join(arguments)} "$@"\n')
        command.chmod(0o700)
        if not os.access(command, os.X_OK):
            raise OSError("it is mounted with noexec")
        listener = self._open.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        listener.bind(str(path))
        listener.listen(1)
        listener.setblocking(False)
        return command, listener

    async def accept(self) -> DevToolsPipe:
        """Wait until the driver starts the command, and return the connected pipe.

        Raises:
            EnvError: the pipe of the driver does not consist of sockets.
        """
        connection, _ = await asyncio.get_running_loop().sock_accept(self._listener)
        with connection:
            connection.settimeout(TIMEOUT_S)
            driver = await asyncio.to_thread(_receive_sockets, connection)
            ours, browsers = socket.socketpair()
            with browsers:
                socket.send_fds(connection, [b"0"], [browsers.fileno()] * len(handover_program.PIPE))
        pipe = DevToolsPipe()
        await pipe.connect(driver, ours)
        return pipe

    def close(self) -> None:
        """Close the socket and remove the command."""
        self._open.close()


def _receive_sockets(connection: socket.socket) -> tuple[socket.socket, socket.socket]:
    """Return the two ends of the driver's pipe, which no child process inherits.

    Raises:
        EnvError: they are not sockets.
    """
    _, descriptors, _, _ = socket.recv_fds(connection, 1, len(handover_program.PIPE))
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    if len(descriptors) != 2 or not all(stat.S_ISSOCK(os.fstat(descriptor).st_mode) for descriptor in descriptors):
        for descriptor in descriptors:
            os.close(descriptor)
        raise EnvError(
            "Playwright's driver does not start the browser with a pipe of two sockets. "
            "Install the version of playwright in requirements/cpu.txt."
        )
    return socket.socket(fileno=descriptors[0]), socket.socket(fileno=descriptors[1])
