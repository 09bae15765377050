"""Memory of a weight transfer: shared memory where it has room, else a temporary file."""

import os
import shutil
import subprocess
import sys
import tempfile
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from uuid import uuid4

import pytest

from verl_agent.platform.weight_transfer import SHARED_MEMORY, FileMemory, create_memory, open_memory

READ = """
import sys
from verl_agent.platform.weight_transfer import open_memory
memory = open_memory(sys.argv[1])
print(type(memory).__name__, bytes(memory.buf[:4]))
"""
FULL = """
mount -t tmpfs -o size=64k tmpfs /dev/shm || exit 77
"$0" -c 'from tests.unit.platform.test_weight_transfer import transfer; print(transfer(1 << 20))'
"""


def transfer(size: int) -> str:
    """Send four bytes to another process; return the kind of memory and the bytes that the process has read."""
    name = f"verl_weights_{uuid4().hex}"
    memory = create_memory(size, name)
    memory.buf[:4] = b"1234"
    ended = subprocess.run([sys.executable, "-c", READ, name], stdout=subprocess.PIPE, text=True, check=True)
    memory.close()
    return ended.stdout.strip()


def test_weights_pass_through_shared_memory_if_it_has_room():
    assert transfer(1 << 20) == "SharedMemory b'1234'"


def test_weights_pass_through_a_file_if_shared_memory_has_no_room():
    more_than_fits = shutil.disk_usage(SHARED_MEMORY).total + (1 << 20)
    name = f"verl_weights_{uuid4().hex}"
    if more_than_fits > shutil.disk_usage(tempfile.gettempdir()).free // 2:
        pytest.skip("the disk has no room for a file that is larger than shared memory")
    memory = create_memory(more_than_fits, name)
    memory.close()
    memory.unlink()
    assert isinstance(memory, FileMemory)
    assert not (SHARED_MEMORY / name).exists()


@pytest.mark.skipif(os.getuid() != 0, reason="only root mounts a small /dev/shm")
def test_another_process_reads_weights_from_the_file():
    ended = subprocess.run(["unshare", "-m", "bash", "-c", FULL, sys.executable], capture_output=True, text=True)
    if "unshare failed" in ended.stderr or ended.returncode == 77:
        pytest.skip(ended.stderr)
    assert ended.stdout.strip() == "FileMemory b'1234'", ended.stderr


def test_the_reader_removes_the_name_of_the_file():
    name = f"verl_weights_{uuid4().hex}"
    with_name = FileMemory(name, 4096)
    reader = open_memory(name)
    reader.buf[0] = 7
    assert with_name.buf[0] == 7 and not isinstance(reader, SharedMemory)
    assert not Path(tempfile.gettempdir(), name).exists()
    for memory in (reader, with_name):
        memory.close()
        memory.unlink()
