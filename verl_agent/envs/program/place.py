"""Places in which a program plays an episode: a folder of this machine, or the sandbox of an environment."""

import asyncio
import json
import os
import shutil
import socket
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from typing_extensions import override

from verl_agent.envs.machine.processes import ProcessTree
from verl_agent.envs.program import inside
from verl_agent.envs.strict_json import read_json
from verl_agent.errors import EnvError
from verl_agent.types import StepResult, TaskItem

MAX_FILE_MB = 512
"""Most MiB of one file that a program on this machine writes."""
_LIMITED = f'ulimit -f {MAX_FILE_MB << 11} && exec "$0" "$@"'


@dataclass(frozen=True, slots=True)
class Launch:
    """Program as an episode starts it.

    Attributes:
        command: program and arguments.
        variables: all its environment variables.
        files: texts to write, by path below its home folder.
    """

    command: Sequence[str]
    variables: Mapping[str, str]
    files: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Ended:
    """End of a program: its exit status, and the ends of its output and errors.

    Attributes:
        limit: reason for which its sandbox was ended, and the program with it; "" without one.
    """

    status: int
    output: str
    errors: str
    limit: str = ""


@runtime_checkable
class RunsPrograms(Protocol):
    """Environment in whose sandbox a program can play a task. The calls may block."""

    async def begin_program(self, item: TaskItem, visible: Sequence[Path]) -> str:
        """Start a sandbox without a network in which these files and folders can be read; return the task's text."""
        ...

    def run_program(self, text: str, settings: bytes) -> tuple[bytes, str]:
        """Run the text of a Python program until it ends; return its output and the limit that ended it, or "".

        Raises:
            EnvError: the sandbox has ended.
        """
        ...

    def kill_program(self) -> None:
        """End the sandbox, so that `run_program` returns in its thread."""
        ...

    async def grade_program(self) -> StepResult:
        """Judge what the program left, and end the sandbox."""
        ...

    async def close(self) -> None:
        """Release the sandbox."""
        ...


class Place(ABC):
    """Place of one program, which starts once.

    Args:
        home: home folder of the program, as it sees it; empty for one of this machine.
    """

    def __init__(self, home: str = "") -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="program-"))
        self.home = home or str(self._folder / "home")
        self._running: asyncio.Future[Ended] | None = None

    @property
    def listeners(self) -> Sequence[socket.socket]:
        """Sockets on which the endpoint has to listen beside its own."""
        return ()

    @abstractmethod
    async def begin(self, item: TaskItem, visible: Sequence[Path]) -> Mapping[str, Any]:
        """Prepare a task, and return the data that the program gets."""

    @abstractmethod
    def start(self, launch: Launch, port: int, one_process: bool) -> None:
        """Start the program; its endpoint has this port."""

    async def ended(self) -> Ended:
        """Wait for the end of the program.

        Raises:
            EnvError: a program of this machine did not start, or exceeded a limit.
        """
        assert self._running is not None  # start set it
        return await asyncio.shield(self._running)

    async def close(self) -> None:
        """End all that the program has started, and remove its folder."""
        try:
            if self._running is not None:
                self._running.cancel()
                with suppress(asyncio.CancelledError, EnvError):
                    await self._running
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)


class FolderPlace(Place):
    """Empty folder of this machine."""

    def __init__(self) -> None:
        super().__init__()
        self._tree = ProcessTree()
        self._process: asyncio.subprocess.Process | None = None

    @override
    async def begin(self, item: TaskItem, visible: Sequence[Path]) -> Mapping[str, Any]:
        return item.data

    @override
    def start(self, launch: Launch, port: int, one_process: bool) -> None:
        inside.write_files(self.home, launch.files)
        self._running = asyncio.ensure_future(self._run(launch))

    async def _run(self, launch: Launch) -> Ended:
        command = self._tree.command(["/bin/sh", "-c", _LIMITED, *launch.command])
        work = self._folder / "work"
        work.mkdir()
        try:
            end = await inside.run(command, self._tree.environment(launch.variables), str(work), self._started)
        except ValueError as error:
            raise EnvError(f"the program was ended: {error}.") from error
        return Ended(**end)

    def _started(self, process: Any) -> None:
        self._process = process

    @override
    async def close(self) -> None:
        process, self._process = self._process, None
        try:
            if process is not None:
                await self._tree.end(process)
        finally:
            await super().close()


class SandboxPlace(Place):
    """Sandbox of an environment. The endpoint is a socket in the file system, which the sandbox can reach."""

    def __init__(self, env: RunsPrograms) -> None:
        super().__init__("/tmp/home")
        self._env, self._threads = env, ThreadPoolExecutor(1)
        self._folder.chmod(0o755)  # a sandbox may run as another user
        self._listener = socket.socket(socket.AF_UNIX)
        self._path = self._folder / "endpoint"
        self._listener.bind(str(self._path))
        self._path.chmod(0o666)
        self._listener.listen(1024)

    @property
    @override
    def listeners(self) -> Sequence[socket.socket]:
        return (self._listener,)

    @override
    async def begin(self, item: TaskItem, visible: Sequence[Path]) -> Mapping[str, Any]:
        return {"instruction": await self._env.begin_program(item, [*visible, self._path])}

    @override
    def start(self, launch: Launch, port: int, one_process: bool) -> None:
        settings = {
            "command": launch.command,
            "variables": launch.variables,
            "files": launch.files,
            "home": self.home,
            "port": port,
            "socket": str(self._path),
            "one_process": one_process,
        }
        self._running = asyncio.get_running_loop().run_in_executor(self._threads, self._run, settings)

    async def grade(self) -> StepResult:
        """Return the verdict of the hidden tests."""
        return await self._env.grade_program()

    def _run(self, settings: Mapping[str, Any]) -> Ended:
        """Return the end of the program. Its tools can end the sandbox or write in its name: neither is an error."""
        text = Path(inside.__file__).read_text(encoding="utf-8")
        try:
            output, limit = self._env.run_program(text, json.dumps(settings).encode())
        except EnvError as error:
            return Ended(-1, "", "", str(error))
        try:
            end = read_json(output.decode("utf-8", "replace"))
        except ValueError:
            end = None
        match {} if limit else end:
            case {"status": int(status), "output": str(written), "errors": str(errors)}:
                return Ended(status, written, errors)
            case {"reason": str(reason)}:
                return Ended(-1, "", "", reason)
        return Ended(-1, "", "", f"it exceeded the limit {limit!r}" if limit else "its first process was ended")

    @override
    async def close(self) -> None:
        running = self._running
        try:
            if running is not None and not running.done():
                self._env.kill_program()
                await asyncio.wait({running})
        finally:
            try:
                await self._env.close()
            finally:
                self._threads.shutdown(wait=False)
                self._listener.close()
                await super().close()


def visible_paths(command: Sequence[str]) -> list[Path]:
    """Return the files and folders that a command needs in a sandbox that has the system's programs.

    A program of npm needs its `node_modules`, one of a virtual environment this and its interpreter, any other
    itself.
    """
    found: list[Path] = []
    for path in (Path(part) for part in command if os.path.isabs(part) and os.path.isfile(part)):
        venv = path.parent.parent
        if modules := [folder for folder in path.parents if folder.name == "node_modules"]:
            found.append(modules[-1])
        elif (venv / "pyvenv.cfg").is_file():
            found += [venv, Path(os.path.realpath(venv / "bin" / "python")).parent.parent]
        else:
            found.append(path)
    system = ("/usr/bin", "/usr/lib", "/bin", "/lib")
    found += [path.resolve() for path in found]
    return [path for path in dict.fromkeys(found) if str(path) != "/usr" and not str(path).startswith(system)]
