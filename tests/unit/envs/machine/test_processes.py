"""Trees of processes: nothing that a command starts outlives it, and nothing else ends with it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import ROOT
from tests.bench.threads import busy
from tests.support.escapes import WAYS, alive, left
from verl_agent.envs.machine.keeper import MARK
from verl_agent.envs.machine.processes import END_S, ProcessTree, process_started

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="keepers need calls of Linux")
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
SPAWNS = """
import os, sys, time, signal
from tests.support.escapes import WAYS, spawn
folder, end = sys.argv[1:]
for number, way in enumerate(WAYS):
    spawn(way, f"{folder}/{number}")
open(f"{folder}/ready", "w").close()
if end == "waits":
    time.sleep(1000)
if end == "is killed":
    os.kill(os.getpid(), signal.SIGKILL)
sys.exit(3 if end == "fails" else 0)
"""
OWNS = f"""
import os, subprocess, sys
from verl_agent.envs.machine.processes import ProcessTree
tree, spawns = ProcessTree(), {SPAWNS!r}
command = tree.command([sys.executable, "-c", spawns, sys.argv[1], "waits"])
subprocess.Popen(command, env=tree.environment(os.environ), start_new_session=True).wait()
"""


@pytest.fixture
def bystanders(tmp_path: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes with a similar command, in this process's group, in groups of their own, and of another tree."""
    sleep = ["sleep", "1000"]
    other = {**os.environ, MARK: "0123456789abcdef"}
    started = [subprocess.Popen(sleep), subprocess.Popen(sleep, start_new_session=True)]
    started.append(subprocess.Popen(sleep, env=other, start_new_session=True))
    yield started
    for process in started:
        process.kill()
        process.wait()


def start(folder: Path, end: str) -> tuple[ProcessTree, subprocess.Popen[bytes]]:
    tree = ProcessTree()
    command = tree.command([sys.executable, "-c", SPAWNS, str(folder), end])
    return tree, subprocess.Popen(command, env=tree.environment(ENVIRONMENT), start_new_session=True)


def spawned(folder: Path, wait: bool = True) -> list[int]:
    give_up = time.monotonic() + 30
    while wait and not (folder / "ready").exists() and time.monotonic() < give_up:
        time.sleep(0.01)
    pids = [int((folder / str(number)).read_text()) for number in range(len(WAYS))]
    assert len(set(pids)) == len(WAYS)
    return pids


@pytest.mark.parametrize(("end", "status"), [("ends", 0), ("fails", 3), ("is killed", -signal.SIGKILL)])
def test_all_children_end_with_a_command_that_ends_by_itself(end, status, tmp_path, bystanders):
    _, process = start(tmp_path, end)
    assert process.wait(30) == status
    assert [pid for pid in spawned(tmp_path, wait=False) if alive(pid)] == []
    assert all(one.poll() is None for one in bystanders)


def test_all_children_end_with_a_tree_that_is_ended(tmp_path, bystanders):
    tree, process = start(tmp_path, "waits")
    pids = spawned(tmp_path)
    assert all(map(alive, pids))
    tree.end_now(process)
    assert [pid for pid in pids if alive(pid)] == []
    assert all(one.poll() is None for one in bystanders)


def test_all_children_end_with_an_owner_that_is_killed(tmp_path, bystanders):
    owner = subprocess.Popen([sys.executable, "-c", OWNS, str(tmp_path)], env=ENVIRONMENT)
    pids = spawned(tmp_path)
    owner.kill()
    owner.wait()
    assert left(pids) == []
    assert all(one.poll() is None for one in bystanders)


FORKS_ON = """
import os, sys, time
if os.fork():
    os._exit(0)
os.setsid()
end = time.monotonic() + 20
while time.monotonic() < end:
    if os.fork():
        os._exit(0)
    with open(sys.argv[1], "a") as file:
        file.write(".")
    time.sleep(0.003)
"""


def test_processes_that_fork_and_end_again_and_again_end_with_their_tree_on_a_busy_machine(tmp_path):
    """Each of them lives for a moment, so that a look at /proc may find none of them."""
    files = [tmp_path / str(number) for number in range(16)]
    with busy(6):
        for file in files:
            tree = ProcessTree()
            command = tree.command([sys.executable, "-c", FORKS_ON, str(file)])
            subprocess.run(command, env=ENVIRONMENT, start_new_session=True, timeout=60, check=True)
    written = {file: file.stat().st_size for file in files if file.exists()}
    time.sleep(1.0)  # one that is left writes about 300 times
    assert {file: file.stat().st_size for file in files if file.exists()} == written


def test_a_stopped_keeper_ends_its_tree_when_its_owner_is_killed(tmp_path):
    owner = subprocess.Popen([sys.executable, "-c", OWNS, str(tmp_path)], env=ENVIRONMENT)
    pids = spawned(tmp_path)
    (keeper,) = map(int, Path(f"/proc/{owner.pid}/task/{owner.pid}/children").read_text().split())
    os.kill(keeper, signal.SIGSTOP)
    owner.kill()
    owner.wait()
    assert left(pids) == []


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL, signal.SIGTERM])
def test_a_child_that_signals_its_keeper_does_not_save_the_tree(number, tmp_path):
    tree, process = start(tmp_path, "waits")
    pids = spawned(tmp_path)
    marked = [pid for way, pid in zip(WAYS, pids, strict=True) if way != "orphan without environment"]
    os.kill(process.pid, number)
    began = time.monotonic()
    tree.end_now(process)
    assert time.monotonic() - began < END_S
    # Without keeper and environment, a process is no more known as a child: the next keeper above ends it.
    assert [pid for pid in (marked if number == signal.SIGKILL else pids) if alive(pid)] == []
    for pid in filter(alive, pids):
        os.kill(pid, signal.SIGKILL)


def test_a_keeper_in_a_tree_hands_its_orphans_up(tmp_path):
    outer = ProcessTree()
    script = f"""
import os, signal, subprocess, sys, time
from verl_agent.envs.machine.processes import ProcessTree
tree, spawns = ProcessTree(), {SPAWNS!r}
process = subprocess.Popen(tree.command([sys.executable, "-c", spawns, {str(tmp_path)!r}, "waits"]))
while not os.path.exists({str(tmp_path / "ready")!r}):
    time.sleep(0.01)
os.kill(process.pid, signal.SIGKILL)
time.sleep(1000)
"""
    command = outer.command([sys.executable, "-c", script])
    process = subprocess.Popen(command, env=outer.environment(ENVIRONMENT), start_new_session=True)
    pids = spawned(tmp_path)
    outer.end_now(process)
    assert [pid for pid in pids if alive(pid)] == []


@pytest.mark.parametrize("text", ["exit 7", "kill -TERM $$", "kill -ABRT $$", "true"])
def test_the_exit_status_is_that_of_the_command(text):
    command = ["sh", "-c", text]
    expected = subprocess.run(command, check=False).returncode
    assert subprocess.run(ProcessTree().command(command), check=False).returncode == expected


def test_a_tree_within_another_ends_alone():
    script = """
import os, subprocess, sys
from verl_agent.envs.machine.processes import ProcessTree
sibling = subprocess.Popen(["sleep", "1000"])
for variables in (None, ProcessTree().environment(os.environ)):
    subprocess.run(ProcessTree().command(["true"]), env=variables, check=True)
print(sibling.poll())
"""
    outer = ProcessTree()
    command, given = outer.command([sys.executable, "-c", script]), outer.environment(ENVIRONMENT)
    assert subprocess.run(command, env=given, capture_output=True, text=True).stdout == "None\n"


def test_a_missing_program_is_named():
    done = subprocess.run(ProcessTree().command(["no-such-program"]), check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (127, "no-such-program does not start: No such file or directory\n")


def test_sigterm_is_passed_on_and_the_command_may_finish():
    script = "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(9)); print('ready'); time.sleep(99)"
    process = subprocess.Popen(ProcessTree().command([sys.executable, "-u", "-c", script]), stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == b"ready\n"
    process.terminate()
    assert process.wait(30) == 9


def test_the_output_ends_when_the_command_closes_it():
    script = "import os, time; print('all'); os.close(1); os.close(2); time.sleep(99)"
    tree = ProcessTree()
    command = tree.command([sys.executable, "-u", "-c", script])
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.read() == b"all\n"
    tree.end_now(process)


def test_descendants_end_and_spared_ones_stay(tmp_path):
    script = """
import os, subprocess, sys
from tests.support.escapes import WAYS, alive, spawn
from verl_agent.envs.machine.processes import adopt_orphans, end_descendants
adopt_orphans()
spared = spawn("child", sys.argv[1] + "/spared")
pids = [spawn(way, f"{sys.argv[1]}/{number}") for number, way in enumerate(WAYS)]
ended = end_descendants(spared=[spared], grace_s=0.2)
print([alive(pid) for pid in pids], alive(spared), ended)
os.kill(spared, 9)
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], env=ENVIRONMENT, capture_output=True, text=True
    )
    assert done.stdout == f"{[False] * len(WAYS)} True {len(WAYS)}\n", done.stderr


def test_a_guarded_process_that_is_killed_leaves_no_child(tmp_path):
    script = """
import os, sys, time
from tests.support.escapes import WAYS, spawn
from verl_agent.envs.machine.processes import guard_this_process
guard_this_process()
for number, way in enumerate(WAYS):
    spawn(way, f"{sys.argv[1]}/{number}")
open(f"{sys.argv[1]}/ready", "w").close()
time.sleep(1000)
"""
    process = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], env=ENVIRONMENT)
    pids = spawned(tmp_path)
    process.kill()
    process.wait()
    found = dict(zip(WAYS, pids, strict=True))
    unmarked = found.pop("orphan without environment")
    assert left(list(found.values())) == []
    os.kill(unmarked, signal.SIGKILL)


def test_a_process_is_known_by_its_start_beside_its_id():
    process = subprocess.Popen(["sleep", "1000"])
    started = process_started(process.pid)
    assert started and started == process_started(process.pid) and started != process_started(1)
    process.kill()
    process.wait()
    assert process_started(process.pid) != started
