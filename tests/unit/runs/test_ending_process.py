"""Test that processes that a library spawns end with the process that started them."""

import multiprocessing
import signal
import subprocess
import sys
from multiprocessing.context import SpawnProcess

import psutil

from tests.support.training_runs import running_after
from verl_agent.runs.processes import spawning_ending_processes

PROGRAM = """
import multiprocessing, subprocess, time
from tests.support.training_runs import running_after
from verl_agent.runs.processes import spawning_ending_processes

with spawning_ending_processes():
    process = multiprocessing.get_context("spawn").Process(target=subprocess.run, args=(["sleep", "60"],))
    process.start()
print(process.pid, flush=True)
time.sleep(60)
"""


def start() -> "tuple[subprocess.Popen[str], list[psutil.Process]]":
    """Start a program that spawns a process that starts another one; return the program and both processes."""
    program = subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True)
    assert program.stdout is not None
    spawned = psutil.Process(int(program.stdout.readline()))
    while not spawned.children():
        psutil.Process(program.pid).status()  # fails if the program has ended
    return program, [spawned, *spawned.children()]


def test_a_spawned_process_and_its_children_end_when_their_program_is_killed():
    program, spawned = start()
    program.send_signal(signal.SIGKILL)
    program.communicate()
    assert running_after(spawned, timeout_s=30) == []


def test_the_spawn_context_is_unchanged_after_the_block():
    context = multiprocessing.get_context("spawn")
    with spawning_ending_processes():
        assert context.Process is not SpawnProcess
    assert context.Process is SpawnProcess and "Process" not in vars(context)
