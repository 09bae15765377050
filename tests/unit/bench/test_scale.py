"""Tests of the measurement of an episode's cost."""

import asyncio
import os
import re
import subprocess
import sys

import pytest
import yaml

from tests.bench import environment_times
from tests.bench.endless import EndlessEnv
from tests.bench.memory import MARK
from tests.bench.scale import INSTANT_TURNS, RECIPE, SAMPLES, Sample, cost, parse, sizes
from verl_agent.types import TaskItem

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
    busy = "import time\nwhile time.process_time() < 0.3: pass\nprint(flush=True)\ntime.sleep(30)"
    command = [sys.executable, "-c", busy]
    with subprocess.Popen(command, env={**os.environ, MARK: "scale"}, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline()
        sample = Sample.take("scale")
        process.kill()
    assert list(sample.cpu_s) == [process.pid]
    assert 0.25 < sample.cpu_s[process.pid] < 1.5 and 0 < sample.gb < 0.2


@pytest.mark.parametrize("episodes", ["4", "20"])
def test_episodes_that_make_no_whole_groups_are_refused(episodes, capsys):
    with pytest.raises(SystemExit):
        parse(["--episodes", episodes])
    assert "multiples of 8" in capsys.readouterr().err


def test_the_instant_load_has_a_turn_limit_that_its_episodes_reach_and_a_place_for_each():
    recipe = RECIPE.format(**sizes(4096, 0, INSTANT_TURNS, instant=True), name="x")
    read = yaml.safe_load(recipe)
    assert read["horizon"]["max_turns"] == [30] and read["data"]["train_batch_size"] * SAMPLES == 4096
    assert read["env"]["hosts"]["count"] * EndlessEnv.hosting.sessions >= 4096

    async def play() -> list[bool]:
        session = EndlessEnv(median_s=0.0).new_session()
        await session.reset(TaskItem("waiting", "train-0"))
        return [(await session.step("anything")).terminated for _ in range(30)]

    assert not any(asyncio.run(play()))


def test_a_turn_takes_its_share_of_the_rollout():
    assert cost(100, 0, BEFORE, AFTER, VALUES).turn_ms == pytest.approx(6000 / (100 * 4.5))


def test_demonstrations_are_timed_by_reset_and_turn(capsys):
    environment_times.main(["guess_number", "--episodes", "3"])
    found = re.search(r"guess_number.*?([\d.]+) ms.*?([\d.]+) ms.*?(\d+)", capsys.readouterr().out)
    assert found is not None and float(found[2]) < 50 and 1 <= int(found[3]) <= 20


@pytest.mark.parametrize(
    ("of", "arguments", "message"),
    [
        (environment_times.parse, ["--episodes", "0"], "error: --episodes must be >= 2, got 0."),
        (environment_times.parse, ["--episodes", "1"], "error: --episodes must be >= 2, got 1."),
        (environment_times.parse, ["textcraft", "nowhere"], "error: NAME is one of babyai, "),
        (environment_times.parse, ["textcraft", "nowhere"], "got nowhere."),
        (parse, ["--turns", "0"], "error: --turns must be >= 1, got 0."),
        (parse, ["--json", "nowhere/x.json"], "error: argument --json: nowhere/x.json is in nowhere"),
    ],
)
def test_wrong_arguments_are_refused_with_option_value_and_what_is_allowed(of, arguments, message, capsys):
    with pytest.raises(SystemExit):
        of(arguments)
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("name", ["openenv", "gymnasium"])
def test_an_environment_without_demonstrations_is_refused_with_those_that_have_some(name):
    with pytest.raises(SystemExit, match=f"error: NAME is .*textcraft.*got {name}"):
        environment_times.main([name])
