"""Watch on the progress of a run: deadlines of phases, signs of progress, and the process that is named."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from verl_agent.platform.stacks import STACKS_FILE
from verl_agent.runs.hang_watch import FACTOR, PHASE_FILE, PLAYING, UNMEASURED, HangWatch, find_hung, mark_phase

TIMEOUT_S = 0.1
PLAY = PLAYING[0]


class Watched:
    """Watch on a folder of which the calling process is the run."""

    def __init__(self, run: Path, timeout_s: float = TIMEOUT_S) -> None:
        (run / "logs").mkdir()
        self.run, self.warnings = run, list[str]()
        self.watch = HangWatch(run, run / "episodes", timeout_s, self.warnings.append, look_s=0)

    def hangs_after(self, seconds: float) -> bool:
        """Return True if the watch reports a hang within some seconds."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if self.watch.check(psutil.Process()) is not None:
                return True
            time.sleep(0.01)
        return False

    def measure(self, phase: str, seconds: float) -> None:
        """Let a phase take some seconds."""
        mark_phase(self.run, phase)
        assert not self.hangs_after(seconds)
        mark_phase(self.run, "another phase")
        assert not self.hangs_after(0.02)


def test_a_phase_that_was_never_measured_has_more_time(tmp_path):
    watched = Watched(tmp_path)
    assert not watched.hangs_after(UNMEASURED * TIMEOUT_S * 0.8) and watched.warnings == []
    assert watched.hangs_after(60) and len(watched.warnings) == 1


def test_the_deadline_of_a_phase_follows_its_longest_time(tmp_path):
    watched = Watched(tmp_path)
    watched.measure("updating", 0.1)
    mark_phase(tmp_path, "updating")
    assert not watched.hangs_after(FACTOR * 0.1 * 0.8) and watched.warnings == []
    assert watched.hangs_after(60)


@pytest.mark.parametrize(("phase", "hangs"), [(PLAY, False), ("updating", True)])
def test_a_finished_episode_is_progress_only_while_the_run_plays(tmp_path, phase, hangs):
    watched = Watched(tmp_path)
    (tmp_path / "episodes").mkdir()
    watched.measure(phase, 0.01)
    mark_phase(tmp_path, phase)
    found = []
    for number in range(8):
        with (tmp_path / "episodes/a.jsonl").open("a") as file:
            file.write(f"{number}\n")
        found.append(watched.hangs_after(TIMEOUT_S * 0.8))
    assert any(found) is hangs


def test_a_timeout_of_zero_watches_nothing(tmp_path):
    watched = Watched(tmp_path, timeout_s=0)
    assert not watched.hangs_after(0.3)


def test_the_time_in_which_the_watch_was_paused_does_not_count(tmp_path):
    watched = Watched(tmp_path)
    watched.measure("updating", 0.01)
    mark_phase(tmp_path, "updating")
    assert not watched.hangs_after(0.02)
    watched.watch._since_s -= 1000  # as after `docker pause`: no look for 1,000 s
    watched.watch._looked_s -= 1000
    assert watched.watch.check(psutil.Process()) is None and watched.warnings == []


def test_after_a_hang_the_next_start_has_twice_the_time(tmp_path):
    watched, seconds = Watched(tmp_path), []
    watched.measure("updating", 0.01)
    for _ in range(2):
        watched.watch.begin()
        mark_phase(tmp_path, "updating")
        started_s = time.monotonic()
        assert watched.hangs_after(60)
        seconds.append(time.monotonic() - started_s)
    assert 1.5 * seconds[0] < seconds[1] < FACTOR * seconds[0]  # a real hang is not worth several deadlines


@pytest.fixture
def engine() -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen(["VLLM::EngineCore", "60"], executable="/bin/sleep") as process:
        yield process
        process.kill()


@pytest.fixture
def worker() -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen(["ray::WorkerDict.update_actor", "60"], executable="/bin/sleep") as process:
        yield process
        process.kill()


def test_the_hung_process_is_a_stopped_one_else_that_of_the_phase(engine, worker):
    named = {phase: find_hung(psutil.Process(), phase) for phase in (PLAY, "updating the policy")}
    assert [(one.pid, one.cause) for one in named.values()] == [(engine.pid, "may hang"), (worker.pid, "may hang")]
    psutil.Process(worker.pid).suspend()
    while psutil.Process(worker.pid).status() != psutil.STATUS_STOPPED:
        time.sleep(0.01)
    assert str(find_hung(psutil.Process(), PLAY)) == f"A training worker, process {worker.pid}, is stopped by a signal."


def test_a_frozen_file_system_is_named_and_the_watch_goes_on(tmp_path):
    """A named pipe without a writer: reading it waits, as a frozen NFS does."""
    watched = Watched(tmp_path)
    os.mkfifo(tmp_path / PHASE_FILE)
    watched.watch._reader._timeout_s = 0.05
    until, death = time.monotonic() + 5, None
    while death is None and time.monotonic() < until:
        death = watched.watch.check(psutil.Process())
    assert death is not None and "the file system of the run does not answer" in death.cause


ANSWERING = """
import sys, time
from verl_agent.platform.stacks import answer_signal
answer_signal()
def waiting_for_a_device():
    print("ready", flush=True)
    time.sleep(60)
waiting_for_a_device()
"""


WRITING = """
import sys
from pathlib import Path
import psutil
from verl_agent.platform.stacks import write_stacks
write_stacks(Path(sys.argv[1]), [("a worker", psutil.Process(int(sys.argv[2])))])
"""


@pytest.mark.parametrize("has_file", [True, False])
def test_a_process_writes_its_stacks_where_py_spy_is_missing(tmp_path, has_file):
    """The process that writes has an interpreter in a folder of its own, without py-spy beside it or in its PATH."""
    file, python = tmp_path / "logs" / "stacks.txt", tmp_path / "python"
    python.symlink_to(sys.executable)
    known = {**os.environ, STACKS_FILE: str(file) if has_file else ""}
    command = subprocess.Popen([sys.executable, "-c", ANSWERING], stdout=subprocess.PIPE, env=known)
    try:
        assert command.stdout is not None
        command.stdout.readline()
        alone = {**os.environ, "PATH": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
        subprocess.run([python, "-c", WRITING, file, str(command.pid)], env=alone, check=True)
        assert command.poll() is None  # the signal would end a process that does not handle it
    finally:
        command.kill()
        command.wait()
    text = file.read_text()
    assert f"== a worker, process {command.pid}" in text
    assert ("waiting_for_a_device" in text) is has_file
    assert ("does not answer the signal" in text) is not has_file
