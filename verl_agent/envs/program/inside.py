"""Start of a program on this machine or in a sandbox, and the first process of a sandbox.

In a sandbox without a network, `main` passes connections on to the endpoint outside, which is a socket in the file
system. A bare interpreter runs the text of this file, so it imports only the standard library.
"""

import asyncio
import json
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

KEPT = 1 << 16
"""Most bytes at the end of an output that are kept."""
MOST = 1 << 26
"""Most bytes of an output."""
MAPPED = f"{0:016X}{int.from_bytes(bytes((0, 0, 255, 255)), sys.byteorder):08X}"
"""Begin of an IPv4 address among those of IPv6, as the kernel's table lists it."""
OTHER_PROCESS = (
    "this process is not the one that asked first, and env.options.one_process=true lets no other use the endpoint."
)
Address = tuple[str, int]
"""IPv4 host and port."""


def write_files(folder: str, files: Mapping[str, str]) -> None:
    """Write texts below a folder."""
    os.makedirs(folder, exist_ok=True)
    for name, text in files.items():
        path = os.path.join(folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)


async def run(command: Sequence[str], variables: Mapping[str, str], folder: str, started: Any = None) -> dict[str, Any]:
    """Run a command in a folder, and return its exit status and the ends of its output and of its errors.

    Args:
        started: called with the process.

    Raises:
        ValueError: the command does not start, or writes more than `MOST` bytes.
    """
    pipe = asyncio.subprocess.PIPE
    try:
        process = await asyncio.create_subprocess_exec(
            *command, cwd=folder, env=dict(variables), stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe,
            start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        raise ValueError(f"{command[0]} does not start: {error.strerror}") from error
    if started is not None:
        started(process)
    output, errors = await asyncio.gather(_end_of(process.stdout), _end_of(process.stderr))
    return {"status": await process.wait(), "output": output, "errors": errors}


async def _end_of(stream: Any) -> str:
    kept, size = b"", 0
    while part := await stream.read(KEPT):
        kept, size = (kept + part)[-KEPT:], size + len(part)
        if size > MOST:
            raise ValueError(f"it wrote more than {MOST >> 20} MiB of output")
    return kept.decode("utf-8", "replace")


class FirstProcess:
    """Process that asks the endpoint first; no other may ask after it."""

    def __init__(self) -> None:
        self._pid = 0

    def allows(self, peer: Address, own: Address) -> bool:
        """Return True if the process that has the connection from `peer` to `own` is known and may ask."""
        pid = connected_process(peer, own)
        self._pid = self._pid or pid
        return pid != 0 and pid == self._pid


def connected_process(peer: Address, own: Address) -> int:
    """Return the process of this machine that has the connection from `peer` to `own`; 0 if it is not known."""
    ends = [_as_listed(peer), _as_listed(own)]
    tables = {"/proc/net/tcp": ends, "/proc/net/tcp6": [f"{MAPPED}{end}" for end in ends]}
    for table, wanted in tables.items():
        with suppress(OSError), open(table, encoding="ascii") as lines:
            for line in lines:
                fields = line.split()
                if fields[1:3] == wanted:
                    return _holder(f"socket:[{fields[9]}]")
    return 0


def _as_listed(address: Address) -> str:
    """Return an IPv4 address as the kernel's tables list it: a number in the machine's byte order, and the port."""
    return f"{int.from_bytes(socket.inet_aton(address[0]), sys.byteorder):08X}:{address[1]:04X}"


def _holder(link: str) -> int:
    for pid in sorted(map(int, filter(str.isdigit, os.listdir("/proc")))):
        with suppress(OSError):  # it has ended, or belongs to another user
            for number in os.listdir(f"/proc/{pid}/fd"):
                with suppress(OSError):
                    if os.readlink(f"/proc/{pid}/fd/{number}") == link:
                        return pid
    return 0


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(KEPT):
            writer.write(data)
            await writer.drain()
    writer.close()


async def main(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Run the program of `settings` in the sandbox of this process."""
    first = FirstProcess()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer, own = writer.get_extra_info("peername"), writer.get_extra_info("sockname")
        if settings["one_process"] and not first.allows(peer, own):
            body = json.dumps({"error": {"message": OTHER_PROCESS, "type": "permission_error"}})
            head = f"HTTP/1.1 403 Forbidden\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
            await reader.read(KEPT)
            writer.write(f"{head}Connection: close\r\n\r\n{body}".encode())
            await writer.drain()
            writer.close()
            return
        out_reader, out_writer = await asyncio.open_unix_connection(settings["socket"])
        await asyncio.gather(_pass_on(reader, out_writer), _pass_on(out_reader, writer))

    write_files(settings["home"], settings["files"])
    async with await asyncio.start_server(connected, "127.0.0.1", settings["port"], backlog=1024):
        try:
            return await run(settings["command"], settings["variables"], os.getcwd())
        except ValueError as error:
            return {"reason": str(error)}


if __name__ == "__main__":
    answer = asyncio.run(main(json.load(sys.stdin)))
    os.write(1, json.dumps(answer).encode())
    os._exit(0)
