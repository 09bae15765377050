"""Weight transfer from trainer to engine: a socket for every run, and files where shared memory is small.

verl copies the weights. The trainer's end is in `vllm_rollout.py`, the engine's end in `worker_extension.py`.

verl 0.9.1 names the socket after the Ray job (workers/rollout/vllm_rollout/vllm_rollout.py:140 and
vllm_async_server.py:143). The id of that job is the same in every Ray that a run starts for itself. Two runs on one
machine would receive each other's weights, or wait forever. The name of the run makes the socket unique.
"""

import mmap
import os
import tempfile
from contextlib import suppress
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.nn import Module

RUN_NAME = "VERL_AGENT_RUN"
"""Environment variable of all processes of a run, with a unique name of the run."""
SOCKET_PREFIX = "/rl-colocate-zmq-"
"""Part of the address in front of verl's job id."""
SHARED_MEMORY = Path("/dev/shm")
"""Folder in which Linux keeps shared memory."""


def run_scoped_socket(address: str) -> str:
    """Return verl's socket address with the name of this run; unchanged if `RUN_NAME` is not set."""
    run = os.environ.get(RUN_NAME)
    return address.replace(SOCKET_PREFIX, f"{SOCKET_PREFIX}{run}-", 1) if run else address


def repeated_parameters(module: "Module") -> set[str]:
    """Return the names of parameters that are another one, such as an output layer that is the embedding."""
    return {name for name, _ in module.named_parameters(remove_duplicate=False)} - set(dict(module.named_parameters()))


class FileMemory:
    """Memory that two processes share through a temporary file, with those members of `SharedMemory` that verl uses.

    The process that opens it removes the file's name, so that nothing is left when both have ended.

    Args:
        name: name of the file in the folder of temporary files.
        size: bytes of a new file; 0 to open an existing one.

    Raises:
        OSError: the disk is full, or the file does not exist.
    """

    def __init__(self, name: str, size: int = 0) -> None:
        self._path = Path(tempfile.gettempdir(), name)
        with self._path.open("x+b" if size else "r+b") as file:
            if size:
                os.posix_fallocate(file.fileno(), 0, size)
            self._map = mmap.mmap(file.fileno(), size)
        if not size:
            self.unlink()
        self.buf = memoryview(self._map)

    def close(self) -> None:
        """Release the memory."""
        self.buf.release()
        self._map.close()

    def unlink(self) -> None:
        """Remove the name of the file."""
        self._path.unlink(missing_ok=True)


def create_memory(size: int, name: str) -> SharedMemory | FileMemory:
    """Create memory for a transfer, in a file if shared memory has no room.

    The kernel reserves nothing when shared memory is created. A process that later writes more than fits gets SIGBUS.
    """
    with suppress(OSError):
        memory = SharedMemory(name, create=True, size=size)
        try:
            with (SHARED_MEMORY / name).open("r+b") as file:
                os.posix_fallocate(file.fileno(), 0, size)
        except OSError:
            memory.close()
            memory.unlink()
            raise
        return memory
    return FileMemory(name, size)


def open_memory(name: str) -> SharedMemory | FileMemory:
    """Open memory that another process has created with `create_memory`."""
    try:
        return SharedMemory(name)
    except FileNotFoundError:
        return FileMemory(name)
