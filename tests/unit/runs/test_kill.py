"""Test of the kill switch with a process that cannot be killed."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from tests import ROOT

KILL = """
import os, signal, subprocess, time
from verl_agent.runs.processes import kill_run

silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
own = subprocess.Popen(["sleep", "60"], user=65534, **silent)
other = subprocess.Popen(["sleep", "60"], **silent)  # of root, as a sandbox with its own rights is
os.setuid(65534)
signal.signal(signal.SIGTERM, lambda *_: print("interrupted", flush=True))
print(own.pid, other.pid, flush=True)
print(kill_run(), "killed", flush=True)
while True:
    time.sleep(1)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="starts processes of two users, so only root can")
def test_process_of_another_user_does_not_keep_the_run_from_being_interrupted_and_killed():
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", KILL]
    run = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment)
    assert run.stdout is not None
    own, other = map(int, run.stdout.readline().split())
    began = time.monotonic()
    try:
        text, _ = run.communicate(timeout=30)
        assert (run.returncode, sorted(text.splitlines())) == (-signal.SIGKILL, ["1 killed", "interrupted"])
        assert time.monotonic() - began < 10  # 4 s, on a machine with nothing else to do
        assert not psutil.pid_exists(own) or psutil.Process(own).status() == psutil.STATUS_ZOMBIE
        assert psutil.Process(other).status() == psutil.STATUS_SLEEPING
    finally:
        os.kill(other, signal.SIGKILL)
        run.kill()
