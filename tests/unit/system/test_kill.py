"""Tests of the kill switch with a process that cannot be killed, and with an event loop that hangs."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from tests import ROOT
from tests.support.waiting import wait_until
from verl_agent.errors import ConfigError
from verl_agent.oversight.socket import SOCKET, send_command

KILL = """
import os, signal, subprocess, time
from verl_agent.system.kill import kill_run

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


HANGING = """
import sys, time
from pathlib import Path
from verl_agent.oversight.control import RunControl
from verl_agent.oversight.socket import controlled
from verl_agent.runs.processes import run_ending_all_children

async def run():
    with controlled(Path(sys.argv[1]), RunControl()):
        time.sleep(60)

run_ending_all_children(run())
"""


def test_a_run_whose_event_loop_hangs_does_not_answer_and_can_be_killed(tmp_path):
    run = subprocess.Popen(
        [sys.executable, "-c", HANGING, str(tmp_path)], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    try:
        wait_until(lambda: (tmp_path / SOCKET).exists(), 60)
        with pytest.raises(ConfigError, match="did not answer within"):
            send_command(tmp_path, {"command": "status"}, timeout_s=0.5)
        assert send_command(tmp_path, {"command": "end"})["killed"] == 0
        assert run.wait(timeout=10) in (1, -signal.SIGKILL)
    finally:
        run.kill()
        run.wait()
