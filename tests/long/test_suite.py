"""Test that a killed suite leaves no process and that the same command finishes it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from verl_agent.trace.record_files import read_records

ROOT = Path(__file__).parents[2]
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


def test_a_killed_suite_leaves_no_process_and_resumes(tmp_path):
    (tmp_path / "slow_policy.py").write_text(POLICY)
    (tmp_path / "suite.yaml").write_text(SUITE)
    program = "from verl_agent.commands.cli import app; app()"
    command = [sys.executable, "-c", program, "suite", "suite.yaml", "--model", "python:slow_policy:reply"]
    command += ["--into", "out"]
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{tmp_path}"}
    first = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL)
    until = time.monotonic() + 120
    while len(records(tmp_path)) < 3 and time.monotonic() < until:
        time.sleep(0.1)
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
