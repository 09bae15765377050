"""Places in which the servers of one session run: a folder of this machine, or the terminal's sandbox."""

import asyncio
import json
import re
import shutil
import socket
import subprocess
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Protocol

import anyio
from pydantic.dataclasses import dataclass

from env_adapters.terminal.adapter import FREE_FOLDER
from env_adapters.terminal.runtimes import Limits, Runtime, SandboxLayout
from env_adapters.terminal.sandbox import Files, Sandbox, SandboxEndedError
from verl_agent.envs.machine.processes import ProcessTree
from verl_agent.envs.program.place import visible_paths
from verl_agent.errors import EnvError
from verl_agent.sections import STRICT

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
MAX_LINE = 1 << 25
"""Most bytes of one message of a server."""
END_S = 2.0
"""Seconds in which a server may end by itself once its input is closed."""
FOLDER = "{folder}"
"""Part of a command that stands for the folder of the session."""
TAIL = 1000
"""Most bytes of a server's errors in a message."""
STATUS = (
    '"$0" -c "$1" > /dev/null 2>&1; echo $?; shift; '
    'for one do command -v "$one" > /dev/null || { echo missing; break; }; done'
)
"""Command that writes the exit status of a check, and `missing` if the machine lacks a program of it."""
PROGRAM = re.compile(
    r"(?:^|[;&|(\n])\s*(?:(?:\w+=\S*|!|env|exec|time|timeout\s+\S+)\s+)*([A-Za-z_][\w.+-]*)(?=[\s;&|)]|$)"
)
"""Bare name at the start of a command of a check."""
INSIDE = f"""
import json, socket, subprocess, sys
path, commands = json.load(sys.stdin)
def connect():
    end = socket.socket(socket.AF_UNIX); end.connect(path); return end
control, started, errors = connect(), [], open("/tmp/errors", "w+b")
for command in commands:
    end = connect(); started.append(subprocess.Popen(command, stdin=end, stdout=end, stderr=errors)); end.close()
control.recv(1)
for one in started:
    try: one.wait({END_S})
    except subprocess.TimeoutExpired: one.kill()
errors.seek(max(0, errors.seek(0, 2) - {TAIL}))
sys.stdout.buffer.write(errors.read())
"""
"""Program that starts servers in a sandbox, each with a connection to a socket of the session."""


@dataclass(frozen=True, slots=True, config=STRICT)
class ServerSpec:
    """One server: a command or a URL.

    Attributes:
        prefix: text before the names of its tools.
    """

    command: Sequence[str] = ()
    url: str = ""
    prefix: str = ""


class Place(Protocol):
    """Folder of a session, the servers in it, and its final state."""

    def open(self, command: Sequence[str]) -> AbstractAsyncContextManager[Streams]:
        """Start a server, whose output and input are yielded; it ends with the block."""
        ...

    def errors(self) -> str:
        """Return the end of what the servers wrote to their standard error. They must have ended."""
        ...

    def state(self) -> Path:
        """Return a folder with the files that the servers have left. They must have ended."""
        ...

    def passes(self, check: str, task: bytes, seconds: float) -> bool | None:
        """Return True if a shell command ends with the status 0 in the final state; None if it exceeded a limit.

        Args:
            task: standard input of the command.

        Raises:
            EnvError: it cannot be run.
        """
        ...

    def close(self) -> None:
        """Remove all that is left."""
        ...


class FolderPlace:
    """Temporary folder of this machine. A server may do all that its user may."""

    def __init__(self, files: Mapping[str, str], variables: Mapping[str, str]) -> None:
        self._root = Path(tempfile.mkdtemp(prefix="mcp-"))
        self._errors, self._variables = (self._root / "errors").open("w+b"), variables
        self._folder = self._root / "work"
        self._folder.mkdir()
        for name, text in files.items():
            path = self._folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")

    @asynccontextmanager
    async def open(self, command: Sequence[str]) -> AsyncIterator[Streams]:
        tree, pipe = ProcessTree(), asyncio.subprocess.PIPE
        command = [part.replace(FOLDER, str(self._folder)) for part in command]
        process = await asyncio.create_subprocess_exec(
            *tree.command(command), cwd=self._folder, env=tree.environment(self._variables), limit=MAX_LINE,
            stdin=pipe, stdout=pipe, stderr=self._errors, start_new_session=True,
        )  # fmt: skip
        assert process.stdout is not None and process.stdin is not None  # pipes
        try:
            yield process.stdout, process.stdin
            process.stdin.close()
            with suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), END_S)
        finally:
            with anyio.CancelScope(shield=True):
                await tree.end(process)

    def errors(self) -> str:
        self._errors.seek(max(0, self._errors.seek(0, 2) - TAIL))
        return self._errors.read().decode("utf-8", "replace").strip()

    def state(self) -> Path:
        return self._folder

    def passes(self, check: str, task: bytes, seconds: float) -> bool | None:
        tree = ProcessTree()
        process = subprocess.Popen(
            tree.command(_judging(check)), cwd=self._folder, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, env=tree.environment(self._variables), start_new_session=True,
        )  # fmt: skip
        try:
            return _passed(check, process.communicate(task, timeout=seconds)[0])
        except subprocess.TimeoutExpired:
            return None
        finally:
            tree.end_now(process)

    def close(self) -> None:
        self._errors.close()
        shutil.rmtree(self._root, ignore_errors=True)


class SandboxPlace:
    """The terminal's sandbox, without a network; the check runs in a second one with the files of the first."""

    def __init__(
        self,
        files: Mapping[str, str],
        variables: Mapping[str, str],
        commands: Sequence[Sequence[str]],
        runtime: Runtime,
        limits: Limits,
    ) -> None:
        self._root = Path(tempfile.mkdtemp(prefix="mcp-"))
        self._root.chmod(0o755)  # the sandbox may run as another user
        self._runtime, self._limits = runtime, limits
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path := str(self._root / "socket"))
        Path(path).chmod(0o666)
        self._listener.listen(len(commands) + 1)
        self._listener.setblocking(False)
        seen = [one for command in commands for one in visible_paths(command)]
        self._layout = SandboxLayout(FREE_FOLDER, visible=[*dict.fromkeys(seen), Path(path)], environ=variables)
        self._commands = [[part.replace(FOLDER, self._layout.folder) for part in command] for command in commands]
        self._thread, self._path = ThreadPoolExecutor(1), path
        self._control: socket.socket | None = None
        self._running: asyncio.Future[tuple[bytes, str]] | None = None
        self._left: Files | None = None
        self._sandbox: Sandbox | None = None
        try:
            self._sandbox = Sandbox(runtime, limits, self._layout)
            if not self._sandbox.put({name: (0o644, text.encode()) for name, text in files.items()}):
                raise EnvError(f"the files of the task do not fit into env.options.limits.disk_mb={limits.disk_mb}.")
        except BaseException:
            self.close()
            raise

    @asynccontextmanager
    async def open(self, command: Sequence[str]) -> AsyncIterator[Streams]:
        """Start all servers with the first one; their connections arrive in the order of the commands."""
        assert self._sandbox is not None  # close removed it
        if self._running is None:
            settings = json.dumps([self._path, self._commands]).encode()
            self._running = asyncio.get_running_loop().run_in_executor(
                self._thread, self._sandbox.run_program, INSIDE, settings
            )
            self._control = await self._accepted()
        reader, writer = await asyncio.open_unix_connection(sock=await self._accepted(), limit=MAX_LINE)
        try:
            yield reader, writer
        finally:
            writer.close()
            if self._control is not None:
                self._control.close()  # by the last server, whose block ends first
            done, _ = await asyncio.wait((self._running,), timeout=5 * END_S)
            if done:
                self._running.exception()  # a sandbox that exceeded a limit has none of its servers left
            else:  # it cannot be asked for anything else
                self._sandbox.kill()

    async def _accepted(self) -> socket.socket:
        """Return the next connection of the program in the sandbox; raise EnvError if it ends before."""
        assert self._running is not None  # open set it
        accepting = asyncio.ensure_future(asyncio.get_running_loop().sock_accept(self._listener))
        await asyncio.wait((accepting, self._running), return_when=asyncio.FIRST_COMPLETED)
        if accepting.done():
            return accepting.result()[0]
        accepting.cancel()
        raise EnvError(f"the servers did not start in the sandbox. {self.errors()}".strip())

    def errors(self) -> str:
        if self._running is None or not self._running.done() or self._running.exception() is not None:
            return ""
        return self._running.result()[0].decode("utf-8", "replace").strip()

    def state(self) -> Path:
        folder = self._root / "work"
        for name, (mode, data) in self._taken().items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            path.chmod(mode)
        return folder

    def _taken(self) -> Files:
        """Return the files that were left, which can be taken once; raise EnvError if they exceed the limits."""
        if self._left is None and self._sandbox is not None:
            self._left = self._sandbox.take(self._layout.folder)
        if self._left is None:
            raise SandboxEndedError("the files that the servers have left are too many or too large.")
        return self._left

    def passes(self, check: str, task: bytes, seconds: float) -> bool | None:
        second = Sandbox(self._runtime, self._limits, SandboxLayout(FREE_FOLDER))
        try:
            if not second.put(self._taken()):
                return None
            written = second.execute(_judging(check), task, seconds, 100)
            return None if written is None else _passed(check, written)
        finally:
            second.end()

    def close(self) -> None:
        if self._sandbox is not None:
            self._sandbox.kill()
            self._thread.shutdown()  # a call in it returns, since the sandbox has ended
            self._sandbox.end()
        self._listener.close()
        if self._control is not None:
            self._control.close()
        shutil.rmtree(self._root, ignore_errors=True)


def _judging(check: str) -> list[str]:
    """Return the command that runs a check, and searches for the programs that it names without a folder."""
    return ["/bin/sh", "-c", STATUS, "/bin/sh", check, *PROGRAM.findall(check)]


def _passed(check: str, written: bytes) -> bool:
    """Return True for the status 0; a missing program with a folder may be a file that the policy did not write."""
    status, *missing = written.split() or [b""]
    if status in (b"126", b"127") and missing:
        raise EnvError(f"the check {check!r:.200} cannot be run: its exit status is {status.decode()}.")
    return status == b"0"
