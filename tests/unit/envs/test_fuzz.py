"""Test that environments answer fuzzed actions with short texts. `make soak` runs 10,000 actions each."""

import time
from collections.abc import Iterator
from random import Random

import pytest

from env_adapters.scienceworld.simulator import simulators
from tests.support.corpus import embedded_corpus
from tests.support.environments import KNOWN
from tests.support.fuzzing import KINDS, draw, fuzz, misread, play_fuzzed
from verl_agent.envs.registry import load_adapter

COUNTS = {"textcraft": 2_000, "babyai": 1_000, "deepsearch": 1_000, "scienceworld": 100}


@pytest.fixture(scope="module", autouse=True)
def corpus() -> Iterator[None]:
    with embedded_corpus():
        yield
    simulators().end()  # the process continues with other tests


@pytest.mark.parametrize("env", KNOWN)
def test_fuzzed_actions_get_bounded_observations(env):
    counts = play_fuzzed(env, 1, COUNTS[env])
    assert counts["actions"] == COUNTS[env]
    assert counts["longest"] < 12_000


@pytest.mark.parametrize("env", KNOWN)
def test_fuzzed_replies_parse_fast_into_a_part_of_them_or_none(env):
    action_format = load_adapter(env).action_format
    started = time.process_time()
    assert misread(action_format, fuzz(2, 500, KNOWN[env].words)) == []
    assert time.process_time() - started < 20  # 1,500 replies, of which a third has up to a million characters


def test_fuzzed_actions_depend_on_the_seed_and_have_every_kind():
    words = ("get", "craft")
    assert list(fuzz(3, 200, words)) == list(fuzz(3, 200, words)) != list(fuzz(4, 200, words))
    for kind in KINDS:
        assert isinstance(draw(Random(1), kind, words), str)
    digits = [action for action in fuzz(3, 200, words) if "5" * 5_000 in action or "9" * 5_000 in action]
    assert digits
