"""Tests of the measurement of a command's memory."""

import json
import sys

import pytest

from tests.bench.memory import main, measure_memory, title

TAKE = "x = b'1' * 60_000_000"


def test_the_peak_counts_children_that_have_cleared_their_environment():
    child = f"import os, time; {TAKE}; time.sleep(30)"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}], env={{}})"
    usage, status = measure_memory([sys.executable, "-c", f"{TAKE}; {parent}"], interval_s=0.1, limit_s=1.0)
    assert status != 0  # interrupted
    assert 0.12 < usage.peak_gb < 0.3 and len(usage.peak) == 2
    assert max(total for _, total in usage.series) == pytest.approx(usage.peak_gb, abs=0.001)


def test_the_command_keeps_its_exit_status_and_the_samples_are_written(tmp_path, capsys):
    path = tmp_path / "memory.json"
    command = [sys.executable, "-c", "import time; time.sleep(0.3); raise SystemExit(3)"]
    assert main(["--interval", "0.1", "--json", str(path), *command]) == 3
    assert json.loads(path.read_text())["peak"][0]["gb"] > 0
    assert "GB of memory at the peak" in capsys.readouterr().out


def test_other_processes_are_not_counted():
    usage, _ = measure_memory([sys.executable, "-c", "import time; time.sleep(0.3)"], interval_s=0.1)
    assert len(usage.peak) == 1 and usage.peak_gb < 0.1


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["/usr/bin/python3", "-m", "verl_agent.commands.train", "x"], "verl_agent.commands.train"),
        (["ray::WorkerDict.update"], "ray::WorkerDict.update"),
        (["/opt/raylet", "--port=1"], "raylet --port=1"),
        ([], "?"),
    ],
)
def test_a_process_has_a_short_name(words, expected):
    assert title(words) == expected


@pytest.mark.parametrize("wrong", [[], ["--interval", "0", "true"]])
def test_a_missing_command_or_interval_is_refused(wrong):
    with pytest.raises(SystemExit):
        main(wrong)
