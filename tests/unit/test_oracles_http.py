"""What the oracles solve in process they solve through HTTP, with the actions alone. All items: `make soak`."""

from collections.abc import Iterator

import pytest

from env_adapters.scienceworld.simulator import simulators
from tests.support.corpus import embedded_corpus
from tests.support.oracles import try_oracle
from tests.support.scripts import spread
from tests.support.serving import pool_of, serving
from verl_agent.envs.registry import load_adapter

COUNTS = {"textcraft": 40, "babyai": 40, "scienceworld": 6, "deepsearch": 40}


@pytest.fixture(scope="module", autouse=True)
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with embedded_corpus(tmp_path_factory.mktemp("cache")):
        yield
    simulators().end()  # this process goes on with other tests


@pytest.mark.parametrize("env", COUNTS)
def test_the_oracle_solves_items_of_every_kind_through_http(env):
    adapter = load_adapter(env)
    items = adapter().tasks("test")
    places = spread(items, COUNTS[env])
    with serving(env, pool_of(adapter), split="test") as running:
        tried = try_oracle(env, "test", running.url, places)
    assert not tried.failed, str(tried)
    assert len(tried.solved) == len(places)


def test_the_oracle_finds_keys_in_boxes_through_http():
    adapter = load_adapter("babyai")
    places = [place for place, item in enumerate(adapter().tasks("test")) if item.data["level"] == "KeyInBox"]
    with serving("babyai", pool_of(adapter), split="test") as running:
        tried = try_oracle("babyai", "test", running.url, places)
    assert (len(tried.solved), tried.failed) == (5, [])
