"""Test the end of a whole evaluation by SIGTERM and by `verl-agent control`, with many episodes queued."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import ROOT
from verl_agent.oversight.socket import send_command
from verl_agent.results.folder import RECORDS, REPORT
from verl_agent.system.kill import DEADLINE_S

RECIPES = ROOT / "recipes" / "textcraft"


def end(process: "subprocess.Popen[str]", folder: Path, by: str) -> None:
    if by == "sigterm":
        process.send_signal(signal.SIGTERM)
    else:
        send_command(folder, {"command": "end"})


@pytest.mark.parametrize("handler", [signal.SIG_DFL, signal.SIG_IGN], ids=["interactive", "nohup"])
@pytest.mark.parametrize("by", ["sigterm", "control"])
def test_a_stopped_evaluation_says_so_in_one_line_and_its_records_are_whole(tmp_path, by, handler):
    folder = tmp_path / "out"
    command = [sys.executable, "-m", "verl_agent.commands.evaluate", "--config-dir", str(RECIPES)]
    command += ["--config-name", "eval_cpu", "model.path=oracle", "evaluation.samples=300"]
    previous = signal.signal(signal.SIGINT, handler)  # inherited by the command
    try:
        process = subprocess.Popen(
            [*command, f"evaluation.output_dir={folder}"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
    finally:
        signal.signal(signal.SIGINT, previous)
    assert process.stdout is not None
    start = [process.stdout.readline() for _ in range(2)]
    assert start[0] == "starting oracle; 33000 episodes to play\n"
    records = folder / RECORDS
    while process.poll() is None and not (records.is_file() and records.stat().st_size):
        time.sleep(0.05)
    end(process, folder, by)
    output = process.communicate(timeout=2 * DEADLINE_S + 10)[0]
    assert output == f"Stopped. To resume, run the same command with evaluation.output_dir={folder}\n"
    assert process.returncode == 130 and not (folder / REPORT).exists()
    assert all(json.loads(line) for line in records.open())
