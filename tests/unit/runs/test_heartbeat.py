"""Sign of life of a run: while it lasts, from elsewhere, and not after its end."""

import os
import subprocess
import sys
import time
from pathlib import Path
from socket import gethostname

import pytest

from tests import ROOT
from verl_agent.envs.machine.processes import process_space
from verl_agent.runs.heartbeat import HEARTBEAT_FILE, LOST_S, is_beating
from verl_agent.runs.identity import LOCK_FILE
from verl_agent.viewer.overview import status_of
from verl_agent.viewer.state import ViewerState

LOCKING = "import sys; from pathlib import Path; from verl_agent.runs.identity import lock; lock(Path(sys.argv[1])); "


@pytest.mark.parametrize("kill", [False, True])
def test_a_run_beats_until_it_ends_or_is_killed(tmp_path: Path, kill: bool) -> None:
    command = [sys.executable, "-c", f"{LOCKING}print('held', flush=True); input()", str(tmp_path)]
    run = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert run.stdout is not None
    run.stdout.readline()
    assert is_beating(tmp_path)
    if kill:
        run.kill()
    run.communicate(b"\n")
    assert not is_beating(tmp_path) and (tmp_path / HEARTBEAT_FILE).exists() == kill


def test_a_run_in_another_container_is_running_while_it_beats(tmp_path: Path) -> None:
    (tmp_path / "metrics").mkdir()
    (tmp_path / LOCK_FILE).touch()
    file = tmp_path / HEARTBEAT_FILE
    file.write_text("another-host 1\n")
    state = ViewerState([tmp_path])
    (opened,) = state.opened.values()
    assert status_of(opened) == "running"
    os.utime(file, (time.time() - LOST_S - 1,) * 2)
    assert status_of(opened) == "stopped at step 0"
    state.close()


def test_a_process_id_of_another_container_with_this_host_name_is_not_looked_up(tmp_path: Path) -> None:
    number, file = 2**22 + 1, tmp_path / HEARTBEAT_FILE  # above the largest id
    for space, beats in ((process_space(), False), ("another/pid:[1]", True), ("", True)):
        file.write_text(f"{gethostname()} {number} {space}\n")
        assert is_beating(tmp_path) == beats


@pytest.mark.parametrize("text", ["", "half", "host no-number\n"])
def test_a_heartbeat_that_is_not_whole_tells_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / HEARTBEAT_FILE).write_text(text)
    assert not is_beating(tmp_path)
