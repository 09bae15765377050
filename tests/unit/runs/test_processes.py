"""Cleanup after a run: child processes and the shared memory of killed processes."""

import signal
import subprocess
import sys
import time
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import psutil
import pytest

from verl_agent.runs.processes import ending_all_children, shared_memory

HOLDS = """
import sys, time
from multiprocessing.shared_memory import SharedMemory
memory = SharedMemory(create=True, size=4096) if len(sys.argv) == 1 else SharedMemory(sys.argv[1])
print(memory.name, flush=True)
time.sleep(60)
"""
linux = pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="shared memory is no folder here")


def child(*arguments: str) -> "tuple[subprocess.Popen[str], Path]":
    """Start a process that holds shared memory; return it and the file of the memory."""
    process = subprocess.Popen([sys.executable, "-c", HOLDS, *arguments], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, Path("/dev/shm", process.stdout.readline().strip())


def kill_family(process: "subprocess.Popen[str]") -> None:
    """Kill a process and its descendants, as Ray does, with the tracker that would free the memory."""
    for one in [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]:
        one.send_signal(signal.SIGKILL)
    process.communicate()


@linux
def test_memory_of_killed_processes_is_freed():
    with ending_all_children() as note:
        process, segment = child()
        note()
        kill_family(process)
        assert segment.exists()
    assert not segment.exists()


@linux
def test_memory_that_another_process_holds_stays():
    mine = SharedMemory(create=True, size=4096)
    segment = Path("/dev/shm", mine.name)
    try:
        assert segment in shared_memory([psutil.Process()])
        with ending_all_children() as note:
            process, same = child(mine.name)
            note()
            kill_family(process)
        assert same == segment and segment.exists()
    finally:
        mine.close()
        mine.unlink()


STOPPED = """
import asyncio, signal, sys, time
from verl_agent.runs.processes import Terminated, run_ending_all_children

async def main():
    try:
        print("ready", flush=True)
        time.sleep(60) if sys.argv[1] == "blocks" else await asyncio.sleep(60)
    finally:
        await asyncio.sleep(0.5)
        print("cleaned", flush=True)

try:
    run_ending_all_children(main())
except Terminated:
    print("terminated", flush=True)
"""


@pytest.mark.parametrize("handler", [signal.SIG_DFL, signal.SIG_IGN], ids=["interactive", "nohup"])
@pytest.mark.parametrize("story", ["awaits", "blocks"])
def test_sigterm_ends_a_coroutine_once_and_lets_it_clean_up(story, handler):
    previous = signal.signal(signal.SIGINT, handler)  # inherited by the process
    try:
        process = subprocess.Popen(
            [sys.executable, "-c", STOPPED, story], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
    finally:
        signal.signal(signal.SIGINT, previous)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=30)[0] == "cleaned\nterminated\n"


def test_ctrl_c_ends_a_coroutine_in_a_long_call():
    process = subprocess.Popen([sys.executable, "-c", STOPPED, "blocks"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=30)[0] == "cleaned\n" and process.returncode == -signal.SIGINT


SWALLOWS = """
import asyncio, time
from verl_agent.runs import processes
from verl_agent.runs.processes import Terminated, run_ending_all_children

processes.SETTLE_S = 0.2

async def main():
    try:
        print("ready", flush=True)
        time.sleep(60)
    except Terminated:
        print("lost", flush=True)
    time.sleep(60)

try:
    run_ending_all_children(main())
except Terminated:
    print("terminated", flush=True)
"""


def test_a_later_sigterm_counts_where_a_library_has_lost_the_first():
    process = subprocess.Popen([sys.executable, "-c", SWALLOWS], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    assert process.stdout.readline() == "lost\n"
    time.sleep(0.3)
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=30)[0] == "terminated\n"


def test_children_end_with_the_block():
    with ending_all_children():
        process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    assert not psutil.pid_exists(process.pid)
