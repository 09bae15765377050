"""Test that a command learns how the command that it runs has ended: by itself, by a signal, or killed by a person."""

import signal
import subprocess
import sys
import time

import pytest

from verl_agent.runs.subprocess_run import GRACE_S, run_command

START = """
import signal, sys, threading, time
from pathlib import Path
from verl_agent.system import kill
from verl_agent.oversight.socket import control_socket, send_command
from verl_agent.runs.subprocess_run import run_command
"""
KILLED = (
    START
    + """
folder = Path(sys.argv[1])
kill.DEADLINE_S = 0.5
{handler}
def end():
    try:
        send_command(folder, {{"command": "end"}})
    except Exception:  # the run may end before it answers
        pass
with control_socket(folder, lambda command: {{"ended": True}}):
    threading.Thread(target=end, daemon=True).start()
    time.sleep(20)
"""
)


def python(program: str, *arguments: str) -> list[str]:
    return [sys.executable, "-c", program, *arguments]


@pytest.mark.parametrize(
    "handler",
    ["signal.signal(signal.SIGTERM, signal.SIG_IGN)", "signal.signal(signal.SIGTERM, lambda *given: sys.exit(2))"],
    ids=["ends_by_sigkill", "ends_with_the_status_of_an_error"],
)
def test_a_command_that_a_person_kills_interrupts_the_command_above(tmp_path, handler):
    with pytest.raises(KeyboardInterrupt):
        run_command(python(KILLED.format(handler=handler), str(tmp_path)))


def test_a_kill_reaches_the_command_two_levels_above(tmp_path):
    inner = KILLED.format(handler="signal.signal(signal.SIGTERM, lambda *given: sys.exit(2))")
    outer = (
        START
        + f"""
try:
    run_command([sys.executable, "-c", {inner!r}, sys.argv[1]])
except KeyboardInterrupt:
    sys.exit(2)
"""
    )
    with pytest.raises(KeyboardInterrupt):
        run_command(python(outer, str(tmp_path)))


def test_sigterm_to_the_command_above_reaches_the_command_at_once():
    inner = "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *given: sys.exit('ended'));"
    inner += "print('ready', flush=True); time.sleep(60)"
    outer = f"""
import sys
from verl_agent.runs.processes import ending_all_children
from verl_agent.runs.subprocess_run import run_command
with ending_all_children():
    run_command([sys.executable, "-c", {inner!r}])
"""
    process = subprocess.Popen(python(outer), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    assert "ended\n" in process.communicate()[1] and time.monotonic() - began < GRACE_S


@pytest.mark.parametrize(
    ("program", "status"),
    [("import sys; sys.exit(2)", 2), ("import os; os.kill(os.getpid(), 9)", -signal.SIGKILL)],
    ids=["error", "out_of_memory"],
)
def test_a_command_that_fails_by_itself_gives_its_status(program, status):
    assert run_command(python(program)) == status


def test_the_status_after_ctrl_c_interrupts():
    with pytest.raises(KeyboardInterrupt):
        run_command(python("import sys; sys.exit(130)"))


def test_a_command_that_does_not_end_is_ended_by_force():
    inner = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); "
    inner += "time.sleep(60)"
    outer = f"""
import sys
from verl_agent.runs import subprocess_run
subprocess_run.GRACE_S = 0.2
subprocess_run.run_command([sys.executable, "-c", {inner!r}])
"""
    process = subprocess.Popen(python(outer), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    assert "KeyboardInterrupt" in process.communicate(timeout=30)[1]
