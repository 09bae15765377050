"""Tests of the simulation of steps against closed forms, and of the tables over many nodes."""

import math
import re
from dataclasses import replace

import pytest

from env_adapters.web_sites.source import EmbeddedTasks
from tests import ROOT
from tests.bench.environment_times import tenths
from tests.bench.scale_plan import (
    ASSUMED,
    ENVIRONMENTS,
    EPISODES,
    HEADINGS,
    MEASURED,
    ON_PAGE,
    draw,
    page_rows,
    parse,
    repeated,
    row,
    saturation,
)
from tests.bench.scale_simulation import (
    PARTIAL,
    SETTINGS,
    SYNCHRONOUS,
    Costs,
    Environment,
    Machines,
    Mode,
    Scene,
    Simulation,
    seconds,
    simulate,
)

FREE = Costs(episode_ms=0, loop_ms=0, server_ms=0, host_ms=0, queue_ms=0, storage_ms=0, driver_ms=0)
COSTS = Costs(episode_ms=3, loop_ms=10, server_ms=5, host_ms=2, queue_ms=20, storage_ms=9, driver_ms=7)
ENVIRONMENT = Environment("fixed", reset_ms=8, turn_ms=28, latency_s=0, sigma=0, turns=(5,), sessions=64)
WAITS = replace(ENVIRONMENT, reset_ms=0, turn_ms=0, latency_s=10.0, turns=(1,))
NO_GPU = Machines(workers=1, gpus=1, hosts=1, storages=1, launch_s=0, token_s=0, update_flops=math.inf, transfer_s=0)
ENGINE = replace(NO_GPU, token_s=0.01, reply_tokens=10)
TWO_BATCHES = Mode("two batches", 1.0, 2, 21)
BY_NAME = {environment.name: environment for environment in ENVIRONMENTS}
PAGE = ROOT / "docs/results/scale.md"


def duration(*of) -> float:
    return seconds(Scene(*of))


def test_one_episode_takes_the_sum_of_its_parts():
    turn = 0.010 + 0.005 + 0.1 + 0.030
    expected = 0.010 + 5 * turn + 0.003 + 0.009 + 0.020 + 0.007 + 3.0
    assert duration(COSTS, ENVIRONMENT, replace(ENGINE, transfer_s=3.0), 1) == pytest.approx(expected)


def test_the_update_takes_the_operations_of_its_tokens_on_all_gpus():
    machines = replace(NO_GPU, nodes=2, gpus=4, parameters=1e9, turn_tokens=100, update_flops=1e12)
    assert duration(FREE, replace(ENVIRONMENT, reset_ms=0, turn_ms=0), machines, 16) == pytest.approx(20 * 16 * 5 / 80)


@pytest.mark.parametrize("hosts", [1, 2, 8])
def test_hosts_take_episodes_times_turns_times_their_time_by_their_number(hosts):
    costs, environment = replace(FREE, host_ms=100), replace(ENVIRONMENT, reset_ms=0, turn_ms=900)
    made = duration(costs, environment, replace(NO_GPU, hosts=hosts), 32)
    assert made == pytest.approx((32 * 0.1 + 32 * 5 * 1.0) / hosts)


@pytest.mark.parametrize(
    ("part", "each"), [("episode", 1), ("loop", 5), ("server", 5), ("storage", 1), ("queue", 1), ("driver", 1)]
)
def test_another_part_takes_its_time_for_each_turn_or_episode(part, each):
    costs, environment = replace(FREE, **{f"{part}_ms": 1000}), replace(ENVIRONMENT, reset_ms=0, turn_ms=0)
    assert duration(costs, environment, NO_GPU, 16) == pytest.approx(16 * each)
    many = replace(NO_GPU, nodes=4)
    shared = 1 if part in ("storage", "queue", "driver") else 4
    assert duration(costs, environment, many, 16) == pytest.approx(16 * each / shared)


def test_episodes_without_a_place_wait_for_those_before_them():
    few = replace(WAITS, sessions=8)
    assert duration(FREE, few, NO_GPU, 32) == pytest.approx(4 * 10.0)
    assert Simulation(Scene(FREE, few, NO_GPU, 32)).run().waited_s == pytest.approx(3 * 10.0)
    assert duration(FREE, few, replace(NO_GPU, hosts=4), 32) == pytest.approx(10.0)
    assert Simulation(Scene(FREE, few, NO_GPU, 32, PARTIAL)).run().waited_s == 0, "a run with too few is refused"


@pytest.mark.parametrize(
    ("mode", "hosts", "expected"), [(SYNCHRONOUS, 1, True), (PARTIAL, 5, False), (PARTIAL, 6, True)]
)
def test_an_asynchronous_run_needs_a_place_for_each_episode_in_flight(mode, hosts, expected):
    assert Scene(FREE, replace(WAITS, sessions=16), replace(NO_GPU, hosts=hosts), 64, mode).is_admitted == expected


@pytest.mark.parametrize(("requests", "gpus", "expected"), [(1, 1, 14), (8, 1, 14), (16, 1, 24), (16, 4, 9)])
def test_a_token_takes_longer_above_a_number_of_requests_and_less_on_more_gpus(requests, gpus, expected):
    machines = Machines(launch_s=0.004, token_s=0.010, batch=8, tensor_parallel=gpus)
    assert machines.step_s(requests) == pytest.approx(expected / 1000)


def test_requests_wait_for_each_other_on_a_replica():
    machines = replace(ENGINE, batch=1)
    assert duration(FREE, replace(WAITS, latency_s=0), machines, 4) == pytest.approx(4 * 0.1)
    assert duration(FREE, replace(WAITS, latency_s=0), replace(machines, gpus=4), 4) == pytest.approx(0.1)


@pytest.mark.parametrize("environment", [WAITS, replace(WAITS, latency_s=0.0)], ids=["environment", "engine"])
def test_without_a_long_tail_asynchronous_rollout_gains_only_what_a_larger_batch_gains(
    environment,
):
    machines = replace(NO_GPU if environment is WAITS else ENGINE, reply_tokens=1000, transfer_s=5.0)
    assert duration(FREE, environment, machines, 32) == pytest.approx(10.0 + 5.0)
    assert duration(FREE, environment, machines, 32, PARTIAL) == pytest.approx(10.0 + 5.0)
    assert duration(FREE, environment, machines, 32, TWO_BATCHES) == pytest.approx((10.0 + 2 * 5.0) / 2)


def test_an_engine_alone_makes_no_progress_during_an_update():
    several, engine = replace(WAITS, latency_s=0.0, turns=tuple(range(1, 21))), replace(ENGINE, batch=1)
    none, long = (duration(FREE, several, replace(engine, transfer_s=pause), 64, PARTIAL) for pause in (0.0, 1000.0))
    assert long - none == pytest.approx(1000.0, abs=0.1)


def test_nothing_in_flight_beside_the_step_is_synchronous_rollout():
    tail = replace(ENVIRONMENT, latency_s=1.0)
    expected = duration(COSTS, tail, ENGINE, 32)
    assert duration(COSTS, tail, ENGINE, 32, Mode("", 0.0, 3, 5)) == pytest.approx(expected)


@pytest.mark.parametrize("threshold", [2, 3, 4])
def test_bounds_of_the_queue_hold_with_a_long_tail(threshold):
    tail = replace(WAITS, sigma=3.0, turns=tuple(range(1, 21)))
    played = Simulation(Scene(FREE, tail, replace(NO_GPU, transfer_s=1.0), 64, Mode("", 0.5, threshold, 12))).run()
    assert played.oldest == threshold - 1 and played.most == 1.5 * 64
    assert Simulation(Scene(FREE, tail, NO_GPU, 64)).run().oldest == 0


def test_a_long_tail_is_shorter_with_asynchronous_rollout():
    tail = replace(WAITS, latency_s=1.0, sigma=1.0, turns=tuple(range(3, 26)))
    machines = replace(NO_GPU, transfer_s=20.0)
    several = replace(SYNCHRONOUS, steps=5)
    assert 1.2 < duration(FREE, tail, machines, 32, several) / duration(FREE, tail, machines, 32, PARTIAL) < 2.5


LONG = replace(NO_GPU, gpus=8, hosts=8, workers=8)
SLOW_TAIL = replace(WAITS, latency_s=1.0, sigma=1.0, turns=tuple(range(3, 26)))
SATURATED = {
    "engine": (Scene(FREE, WAITS, replace(LONG, token_s=0.5), 64), {"tensor_model_parallel_size": 0.25}),
    "update": (Scene(FREE, WAITS, replace(LONG, update_flops=1e13), 64), {"GPUs": 0.4}),
    "transfer": (Scene(FREE, WAITS, replace(LONG, transfer_s=30.0), 64), {}),
    "latency": (Scene(FREE, SLOW_TAIL, replace(LONG, transfer_s=20.0), 64), {"rollout=partial": 0.2}),
    "hosts": (Scene(FREE, replace(WAITS, turn_ms=4e3), LONG, 64), {"env.hosts.count": 0.3}),
    "loop": (Scene(replace(FREE, episode_ms=4e3), WAITS, LONG, 64), {"agent.num_workers": 0.3}),
    "server": (Scene(replace(FREE, server_ms=4e3), WAITS, LONG, 64), {"GPUs": 0.3}),
    "storage": (Scene(replace(FREE, storage_ms=1e3), WAITS, LONG, 64), {"num_data_storage_units": 0.3}),
    "queue": (Scene(replace(FREE, queue_ms=1e3), WAITS, LONG, 64), {}),
    "driver": (Scene(replace(FREE, driver_ms=1e3), WAITS, LONG, 64), {}),
}
"""For each part a step in which it comes first, and at least what the settings save that move it."""
MANY_REQUESTS = Scene(FREE, replace(WAITS, latency_s=1.0), replace(LONG, token_s=0.01, batch=1), 64)


@pytest.mark.parametrize("part", SATURATED)
def test_the_part_that_takes_most_comes_first_and_the_named_settings_shorten_the_step(part):
    scene, expected = SATURATED[part]
    step = simulate(scene)
    assert set(step.saved) == set(SATURATED)
    assert step.parts[0] == part and set(step.moved) == set(expected)
    for setting, least in expected.items():
        assert least <= 1 - seconds(SETTINGS[setting](scene)) / step.played.seconds <= 0.5


def test_gpus_move_an_engine_with_many_requests_and_tensor_parallelism_one_with_few():
    assert set(simulate(MANY_REQUESTS).moved) == {"GPUs"}
    few = Scene(MEASURED, BY_NAME["TextCraft"], ASSUMED, 64, repeated(SYNCHRONOUS, 64))
    engine_s, with_gpus_s, with_tensor_s = (
        seconds(scene) - seconds(scene, "engine") for scene in (few, few.twice("gpus"), few.twice("tensor_parallel"))
    )
    assert with_gpus_s > 0.95 * engine_s and 0.6 * engine_s < with_tensor_s < 0.75 * engine_s
    assert "GPUs" not in simulate(few).moved


def test_more_hosts_move_an_engine_whose_episodes_wait_for_places():
    engine = replace(LONG, hosts=1, launch_s=0.5, token_s=0.5)
    few = Scene(FREE, replace(WAITS, latency_s=0.0, sessions=16), engine, 64)
    moved = simulate(few).moved
    assert list(moved) == ["env.hosts.count", "tensor_model_parallel_size"]
    assert moved["env.hosts.count"] == pytest.approx(0.5)


def test_turns_of_the_web_are_those_of_the_scripts_of_its_tasks():
    scripts = [len(item.data["oracle"]) for item in EmbeddedTasks().items("train_all")]
    assert tuple(tenths(scripts)) == BY_NAME["Chromium"].turns
    assert tenths([7] * 5 + [1] * 5) == [1] * 5 + [7] * 5


def test_rows_of_the_page_are_those_of_the_tool():
    """A row is simulated, and one is refused; all rows of the page are compared with the file that it links."""
    few, more = (replace(ASSUMED, hosts=hosts) for hosts in (1, 8))
    scene = Scene(MEASURED, BY_NAME[ON_PAGE], more, 256, repeated(SYNCHRONOUS, 256))
    refused = Scene(MEASURED, BY_NAME[ON_PAGE], few, 256, repeated(PARTIAL, 256))
    lines = [re.split(r" *[│|] *", line.strip("│| \n")) for line in PAGE.with_suffix(".txt").open(encoding="utf-8")]
    assert row(scene, simulate(scene)) in lines
    assert not refused.is_admitted and row(refused, None) in lines
    shown = PAGE.read_text(encoding="utf-8").splitlines()
    of_page = page_rows([cells for cells in lines if len(cells) == len(HEADINGS)])
    assert len(of_page) == len(EPISODES) and [line for line in of_page if line not in shown] == []


@pytest.mark.parametrize(
    ("path", "fault"),
    [("nowhere/x.png", "does not exist"), (".", "is a folder"), ("x.pdf", "does not end with .png")],
)
def test_a_figure_that_cannot_be_written_is_refused_before_the_work(path, fault, tmp_path, capsys):
    with pytest.raises(SystemExit):
        parse(["--figure", str(tmp_path / path)])
    written = capsys.readouterr().err
    assert "error: argument --figure: " in written and fault in written


def test_more_nodes_are_faster_and_the_curves_are_drawn(tmp_path):
    scenes = [Scene(MEASURED, ENVIRONMENTS[1], replace(ASSUMED, nodes=nodes), 64) for nodes in (1, 4)]
    steps = [simulate(scene) for scene in scenes]
    assert steps[1].played.seconds < steps[0].played.seconds
    draw(steps, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert saturation([row(*both) for both in zip(scenes, steps, strict=True)]).row_count == 2
