"""Program that starts a browser and hands its DevTools pipe over to another process.

`python handover_program.py SOCKET COMMAND ARGUMENTS...` is started with the descriptors 3 and 4 of a DevTools pipe (see
`--remote-debugging-pipe`). It sends them through the Unix socket SOCKET, receives two others, and becomes COMMAND,
which uses those. It imports nothing of this project, because it runs in isolated mode.
"""

import os
import socket
import sys

PIPE = (3, 4)
"""Descriptors from which Chromium reads commands, and to which it writes responses and events."""


def main(path: str, command: str, *arguments: str) -> None:
    """Exchange the descriptors of the pipe and start the browser in this process."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(path)
        socket.send_fds(connection, [b"0"], PIPE)
        _, received, _, _ = socket.recv_fds(connection, 1, len(PIPE))
    for target, descriptor in zip(PIPE, received, strict=True):
        os.dup2(descriptor, target)
        if descriptor not in PIPE:
            os.close(descriptor)
    os.execvp(command, [command, *arguments])


if __name__ == "__main__":
    main(*sys.argv[1:])
