"""Tests of the extrapolation of a step to many nodes."""

from dataclasses import replace

import pytest

from tests.bench.scale_plan import (
    ASSUMED,
    ENVIRONMENTS,
    MEASURED,
    Costs,
    Environment,
    Machines,
    draw,
    rollout_s,
    simulate,
)

COSTS = Costs(loop_ms=10, queue_ms=20, driver_ms=0)
ENVIRONMENT = Environment("fixed", host_ms=30, latency_s=0, sigma=0, turns=(5, 5))
ONE = Machines(workers=1, gpus=1, cores=1, token_s=0.01, request_s=0.0, reply_tokens=10)


def test_one_episode_takes_the_sum_of_its_parts():
    assert rollout_s(COSTS, ENVIRONMENT, ONE, 1) == pytest.approx(5 * (0.010 + 0.1 + 0.030) + 0.020)


def test_episodes_wait_for_the_resource_that_is_busy():
    hosts = replace(ENVIRONMENT, host_ms=1000)
    assert rollout_s(COSTS, hosts, ONE, 8) == pytest.approx(8 * 5, rel=0.01), "one core plays one turn at a time"
    assert rollout_s(COSTS, hosts, replace(ONE, cores=8), 8) == pytest.approx(5.6, rel=0.05)
    loop = replace(COSTS, loop_ms=1000)
    assert rollout_s(loop, ENVIRONMENT, ONE, 8) == pytest.approx(8 * 5, rel=0.01)
    assert rollout_s(loop, ENVIRONMENT, replace(ONE, nodes=8), 8) == pytest.approx(5.6, rel=0.05)
    assert rollout_s(replace(COSTS, queue_ms=1000), ENVIRONMENT, ONE, 8) == pytest.approx(8.7, rel=0.05)


def test_concurrent_requests_make_a_token_slower():
    slower = replace(ONE, request_s=0.01)
    assert rollout_s(COSTS, ENVIRONMENT, slower, 4) > 1.5 * rollout_s(COSTS, ENVIRONMENT, ONE, 4)


@pytest.mark.parametrize(
    ("changes", "environment", "expected"),
    [({"driver_ms": 5e3}, ENVIRONMENT, "driver"), ({}, replace(ENVIRONMENT, host_ms=9e5), "hosts")],
)
def test_the_part_that_takes_most_is_named(changes, environment, expected):
    assert simulate(replace(COSTS, **changes), environment, ASSUMED, 32).bottleneck == expected


def test_more_nodes_are_faster_and_the_curves_are_drawn(tmp_path):
    steps = [simulate(MEASURED, ENVIRONMENTS[0], replace(ASSUMED, nodes=nodes), 256) for nodes in (1, 4)]
    assert steps[1].seconds < steps[0].seconds
    draw(steps, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
