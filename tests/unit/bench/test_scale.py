"""Tests of the measurement of an episode's cost."""

import os
import subprocess
import sys
import time

import pytest

from tests.bench.memory import MARK
from tests.bench.scale import Sample, cost, main

BEFORE = Sample({1: 10.0, 2: 1.0}, {1: "driver", 2: "ray::AgentLoopWorker"}, gb=1.0, sent=5_000_000)
AFTER = Sample({1: 12.0, 2: 5.0, 3: 2.0}, {1: "driver", 2: "ray::AgentLoopWorker", 3: "host"}, gb=1.5, sent=7_000_000)
VALUES = {"timing_s/step": 9.0, "timing_s/gen": 6.0, "episode/turns_mean": 4.5}


def test_time_between_two_samples_is_divided_by_the_episodes():
    found = cost(100, 0, BEFORE, AFTER, VALUES)
    assert found.cpu_ms == {"ray::AgentLoopWorker": 40.0, "driver": 20.0, "host": 20.0}
    assert found.seconds == {"gen": 6.0, "step": 9.0} and found.turns == 4.5
    assert found.gb == 1.5 and found.sent_kb == 20.0


def test_processes_with_one_name_are_added():
    after = Sample({1: 11.0, 2: 3.0}, {1: "host", 2: "host"}, gb=1.0, sent=0)
    assert cost(10, 0, BEFORE, after, VALUES).cpu_ms == {"host": 300.0}


def test_a_sample_holds_marked_processes_only():
    busy = "import time\nwhile time.process_time() < 0.3: pass\ntime.sleep(30)"
    with subprocess.Popen([sys.executable, "-c", busy], env={**os.environ, MARK: "scale"}) as process:
        time.sleep(1.5)
        sample = Sample.take("scale")
        process.kill()
    assert list(sample.cpu_s) == [process.pid]
    assert 0.25 < sample.cpu_s[process.pid] < 1.5 and 0 < sample.gb < 0.2


@pytest.mark.parametrize("episodes", ["4", "20"])
def test_episodes_that_make_no_whole_groups_are_refused(episodes, capsys):
    with pytest.raises(SystemExit):
        main(["--episodes", episodes])
    assert "multiples of 8" in capsys.readouterr().err
