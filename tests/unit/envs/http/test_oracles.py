"""Tests that the oracles solve tasks over HTTP; `make soak` plays all tasks."""

from collections.abc import Iterator

import pytest

from env_adapters.scienceworld.simulator import simulators
from tests.support.corpus import embedded_corpus
from tests.support.oracles import try_oracle
from tests.support.scripts import spread
from tests.support.serving import pool_of, serving
from verl_agent.envs.registry import load_adapter

COUNTS = {"textcraft": 20, "babyai": 20, "scienceworld": 2, "deepsearch": 20}


@pytest.fixture(scope="module", autouse=True)
def corpus() -> Iterator[None]:
    with embedded_corpus():
        yield
    simulators().end()  # other tests run in this process


@pytest.mark.parametrize("env", COUNTS)
def test_oracle_solves_tasks_over_http(env):
    adapter = load_adapter(env)
    items = adapter().tasks("test")
    indices = spread(items, COUNTS[env])
    with serving(env, pool_of(adapter), split="test") as running:
        result = try_oracle(env, "test", running.url, indices)
    assert not result.failed, str(result)
    assert len(result.solved) == len(indices)


def test_oracle_finds_keys_in_boxes_over_http():
    adapter = load_adapter("babyai")
    indices = [index for index, item in enumerate(adapter().tasks("test")) if item.data["level"] == "KeyInBox"]
    with serving("babyai", pool_of(adapter), split="test") as running:
        result = try_oracle("babyai", "test", running.url, indices)
    assert (len(result.solved), result.failed) == (5, [])
