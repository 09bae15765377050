"""Test the memory of processes."""

import multiprocessing
import os

import psutil

from verl_agent.envs.machine.memory import proportional_mb


def test_pages_that_processes_share_count_once():
    held = os.urandom(64 * 2**20)
    context = multiprocessing.get_context("fork")
    begun, end = context.Event(), context.Event()

    def wait() -> None:
        begun.set()
        end.wait()

    before = proportional_mb(psutil.Process())
    child = context.Process(target=wait)
    child.start()
    assert begun.wait(30) and child.pid is not None
    both = proportional_mb(psutil.Process()) + proportional_mb(psutil.Process(child.pid))
    end.set()
    child.join()
    assert both < before + len(held) / 2**20 / 2


def test_a_process_that_has_ended_has_no_memory():
    child = multiprocessing.get_context("spawn").Process()
    child.start()
    process = psutil.Process(child.pid)
    child.join()
    assert proportional_mb(process) == 0.0
