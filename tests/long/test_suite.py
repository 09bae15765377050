"""Test that a killed suite leaves no process, that the same command finishes it, and that the kill switch ends it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests import ROOT
from verl_agent.oversight.socket import send_command
from verl_agent.trace.record_files import read_records

POLICY = "import time\n\ndef reply(messages):\n    time.sleep(0.05)\n    return 'Action: 3'\n"
SUITE = f"""
evaluations:
  first: &evaluation
    recipe: {ROOT}/recipes/guess_number/eval.yaml
    categories: [1 to 7, 1 to 10]
    overrides: [evaluation.tasks=small_test, evaluation.concurrency=1, env.hosts.where=inline]
  second: *evaluation
"""

pytestmark = pytest.mark.slow


def records(folder: Path) -> list[tuple[str, int]]:
    files = sorted(folder.glob("out/*/*/episodes.jsonl"))
    return [(file.parent.name, one["task"]) for file in dict.fromkeys(files) for one in read_records(file)]


def start(folder: Path) -> tuple[list[str], dict[str, str], "subprocess.Popen[bytes]"]:
    """Start a suite of two evaluations and wait until the first one has recorded three episodes."""
    (folder / "slow_policy.py").write_text(POLICY)
    (folder / "suite.yaml").write_text(SUITE)
    program = "from verl_agent.commands.cli import app; app()"
    command = [sys.executable, "-c", program, "suite", "suite.yaml", "--model", "python:slow_policy:reply"]
    command += ["--into", "out"]
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{folder}"}
    running = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL)
    until = time.monotonic() + 120
    while len(records(folder)) < 3 and time.monotonic() < until:
        time.sleep(0.1)
    return command, environment, running


def test_the_kill_switch_of_an_evaluation_ends_its_suite(tmp_path):
    *_, running = start(tmp_path)
    children = psutil.Process(running.pid).children(recursive=True)
    (folder,) = tmp_path.glob("out/*/first")
    assert "killed" in send_command(folder, {"command": "end"})
    assert running.wait(timeout=20) == 130
    psutil.wait_procs(children, timeout=5)
    assert [child for child in children if child.is_running()] == []
    assert {name for name, _ in records(tmp_path)} == {"first"} and not list(tmp_path.glob("out/*/second"))


def test_a_killed_suite_leaves_no_process_and_resumes(tmp_path):
    command, environment, first = start(tmp_path)
    children = psutil.Process(first.pid).children(recursive=True)
    assert children, "the suite plays each evaluation in a child process"
    first.send_signal(signal.SIGKILL)
    first.wait()
    psutil.wait_procs(children, timeout=20)
    assert [child for child in children if child.is_running()] == []
    before = records(tmp_path)
    assert 3 <= len(before) < 34
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, stdout=subprocess.DEVNULL)
    after = records(tmp_path)
    assert len(after) == len(set(after)) == 34 and after[: len(before)] == before
    assert (tmp_path / "out/suite.md").is_file() and (tmp_path / "out/leaderboard.json").is_file()
