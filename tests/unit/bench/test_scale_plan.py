"""Tests of the simulation of steps against closed forms, and of the tables over many nodes."""

import math
from dataclasses import replace

import pytest

from tests.bench.scale_plan import ASSUMED, ENVIRONMENTS, MEASURED, draw, is_admitted, saturation
from tests.bench.scale_simulation import (
    PARTIAL,
    SYNCHRONOUS,
    Costs,
    Environment,
    Machines,
    Mode,
    Simulation,
    simulate,
)

FREE = Costs(loop_ms=0, server_ms=0, host_ms=0, queue_ms=0, driver_ms=0)
COSTS = Costs(loop_ms=10, server_ms=5, host_ms=2, queue_ms=20, driver_ms=7)
ENVIRONMENT = Environment("fixed", reset_ms=8, turn_ms=28, latency_s=0, sigma=0, turns=(5, 5), sessions=64)
WAITS = replace(ENVIRONMENT, reset_ms=0, turn_ms=0, latency_s=10.0, turns=(1, 1))
NO_GPU = Machines(workers=1, gpus=1, hosts=1, token_s=0, request_s=0, update_flops=math.inf, transfer_s=0)
ENGINE = replace(NO_GPU, token_s=0.01, reply_tokens=10)
TWO_BATCHES = Mode("two batches", 1.0, 2, 21)


def seconds(*of) -> float:
    return Simulation(*of).run().seconds


def test_one_episode_takes_the_sum_of_its_parts():
    turn = 0.010 + 0.005 + 0.1 + 0.030
    expected = 0.010 + 5 * turn + 0.020 + 0.007 + 3.0
    assert seconds(COSTS, ENVIRONMENT, replace(ENGINE, transfer_s=3.0), 1) == pytest.approx(expected)


def test_the_update_takes_the_operations_of_its_tokens_on_all_gpus():
    machines = replace(NO_GPU, nodes=2, gpus=4, parameters=1e9, turn_tokens=100, update_flops=1e12)
    assert seconds(FREE, replace(ENVIRONMENT, reset_ms=0, turn_ms=0), machines, 16) == pytest.approx(20 * 16 * 5 / 80)


@pytest.mark.parametrize("hosts", [1, 2, 8])
def test_hosts_take_episodes_times_turns_times_their_time_by_their_number(hosts):
    costs, environment = replace(FREE, host_ms=100), replace(ENVIRONMENT, reset_ms=0, turn_ms=900)
    made = seconds(costs, environment, replace(NO_GPU, hosts=hosts), 32)
    assert made == pytest.approx((32 * 0.1 + 32 * 5 * 1.0) / hosts)


@pytest.mark.parametrize(("part", "each"), [("loop", 5), ("server", 5), ("queue", 1), ("driver", 1)])
def test_another_part_takes_its_time_for_each_turn_or_episode(part, each):
    costs, environment = replace(FREE, **{f"{part}_ms": 1000}), replace(ENVIRONMENT, reset_ms=0, turn_ms=0)
    assert seconds(costs, environment, NO_GPU, 16) == pytest.approx(16 * each)
    many = replace(NO_GPU, nodes=4)
    shared = 1 if part in ("queue", "driver") else 4
    assert seconds(costs, environment, many, 16) == pytest.approx(16 * each / shared)


def test_episodes_without_a_place_wait_for_those_before_them():
    few = replace(WAITS, sessions=8)
    assert seconds(FREE, few, NO_GPU, 32) == pytest.approx(4 * 10.0)
    assert Simulation(FREE, few, NO_GPU, 32).run().waited_s == pytest.approx(3 * 10.0)
    assert seconds(FREE, few, replace(NO_GPU, hosts=4), 32) == pytest.approx(10.0)
    assert Simulation(FREE, few, NO_GPU, 32, PARTIAL).run().waited_s == 0, "a run with too few is refused"


@pytest.mark.parametrize(
    ("mode", "hosts", "expected"), [(SYNCHRONOUS, 1, True), (PARTIAL, 5, False), (PARTIAL, 6, True)]
)
def test_an_asynchronous_run_needs_a_place_for_each_episode_in_flight(mode, hosts, expected):
    assert is_admitted(replace(WAITS, sessions=16), hosts, 64, mode) == expected


def test_concurrent_requests_make_a_token_slower():
    slower = replace(ENGINE, request_s=0.01)
    assert seconds(FREE, replace(ENVIRONMENT, turn_ms=0), slower, 1) == pytest.approx(5 * 10 * 0.02 + 0.008)
    assert seconds(COSTS, ENVIRONMENT, slower, 4) > 1.5 * seconds(COSTS, ENVIRONMENT, ENGINE, 4)


@pytest.mark.parametrize("environment", [WAITS, replace(WAITS, latency_s=0.0)], ids=["environment", "engine"])
def test_without_a_long_tail_asynchronous_rollout_gains_only_what_a_larger_batch_gains(
    environment,
):
    machines = replace(NO_GPU if environment is WAITS else ENGINE, reply_tokens=1000, transfer_s=5.0)
    assert seconds(FREE, environment, machines, 32) == pytest.approx(10.0 + 5.0)
    assert seconds(FREE, environment, machines, 32, PARTIAL) == pytest.approx(10.0 + 5.0)
    assert seconds(FREE, environment, machines, 32, TWO_BATCHES) == pytest.approx((10.0 + 2 * 5.0) / 2)


def test_an_engine_alone_makes_no_progress_during_an_update():
    several, engine = replace(WAITS, latency_s=0.0, turns=(1, 20)), replace(ENGINE, request_s=0.1)
    none, long = (seconds(FREE, several, replace(engine, transfer_s=pause), 64, PARTIAL) for pause in (0.0, 1000.0))
    assert long - none == pytest.approx(1000.0, abs=0.1)


def test_nothing_in_flight_beside_the_step_is_synchronous_rollout():
    tail = replace(ENVIRONMENT, latency_s=1.0)
    expected = seconds(COSTS, tail, ENGINE, 32)
    assert seconds(COSTS, tail, ENGINE, 32, Mode("", 0.0, 3, 5)) == pytest.approx(expected)


@pytest.mark.parametrize("threshold", [2, 3, 4])
def test_bounds_of_the_queue_hold_with_a_long_tail(threshold):
    tail = replace(WAITS, sigma=3.0, turns=(1, 20))
    played = Simulation(FREE, tail, replace(NO_GPU, transfer_s=1.0), 64, Mode("", 0.5, threshold, 12)).run()
    assert played.oldest == threshold - 1 and played.most == 1.5 * 64
    assert Simulation(FREE, tail, NO_GPU, 64).run().oldest == 0


def test_a_long_tail_is_shorter_with_asynchronous_rollout():
    tail = replace(WAITS, latency_s=1.0, sigma=1.0, turns=(3, 25))
    machines = replace(NO_GPU, transfer_s=20.0)
    several = replace(SYNCHRONOUS, steps=5)
    assert 1.2 < seconds(FREE, tail, machines, 32, several) / seconds(FREE, tail, machines, 32, PARTIAL) < 2.5


@pytest.mark.parametrize(
    ("changes", "environment", "expected"),
    [({"driver_ms": 5e3}, ENVIRONMENT, "driver"), ({}, replace(ENVIRONMENT, turn_ms=9e5), "hosts")],
)
def test_the_part_that_takes_most_is_named(changes, environment, expected):
    assert simulate(replace(COSTS, **changes), environment, ASSUMED, 32).parts[0] == expected


def test_more_nodes_are_faster_and_the_curves_are_drawn(tmp_path):
    steps = [simulate(MEASURED, ENVIRONMENTS[0], replace(ASSUMED, nodes=nodes), 64) for nodes in (1, 4)]
    assert steps[1].played.seconds < steps[0].played.seconds
    draw(steps, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert saturation(steps).row_count == 2
