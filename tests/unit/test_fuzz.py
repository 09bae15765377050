"""Whatever an environment is told, it answers, and briefly. With 10,000 actions each: `make soak`."""

import asyncio
import time
from collections.abc import Iterator
from random import Random

import pytest

from env_adapters.scienceworld.simulator import simulators
from tests.support.corpus import embedded_corpus
from tests.support.environments import KNOWN
from tests.support.fuzzing import KINDS, annoy, draw, fuzz, misread
from verl_agent.envs.registry import load_adapter, make_env

COUNTS = {"textcraft": 2_000, "babyai": 1_000, "deepsearch": 1_000, "scienceworld": 200}


@pytest.fixture(scope="module", autouse=True)
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with embedded_corpus(tmp_path_factory.mktemp("cache")):
        yield
    simulators().end()  # this process goes on with other tests


@pytest.mark.parametrize("env", KNOWN)
def test_fuzzed_actions_end_in_a_bounded_observation(env):
    known, session = KNOWN[env], make_env(env)
    actions = list(fuzz(1, COUNTS[env], known.words))
    actions[1::2] = [known.wrap.format(action) for action in actions[1::2]]
    seen = asyncio.run(annoy(session, session.tasks(known.split)[known.item], iter(actions)))
    assert seen["actions"] == COUNTS[env]
    assert seen["longest"] < 12_000


@pytest.mark.parametrize("env", KNOWN)
def test_fuzzed_replies_are_read_in_no_time_and_give_a_part_of_them_or_nothing(env):
    action_format = load_adapter(env).action_format
    started = time.process_time()
    assert misread(action_format, fuzz(2, 500, KNOWN[env].words)) == []
    assert time.process_time() - started < 20  # 1,500 replies, of which a third has up to a million characters


def test_a_seed_draws_the_same_actions_and_every_kind_is_among_them():
    words = ("get", "craft")
    assert list(fuzz(3, 200, words)) == list(fuzz(3, 200, words)) != list(fuzz(4, 200, words))
    for kind in KINDS:
        assert isinstance(draw(Random(1), kind, words), str)
    digits = [action for action in fuzz(3, 200, words) if "5" * 5_000 in action or "9" * 5_000 in action]
    assert digits
