"""Test what the adapters of other libraries share: options, tasks, and generators of random numbers."""

import random

import pytest

from env_adapters.openenv.adapter import OpenEnv
from env_adapters.seeded import FIRST_TEST_SEED, OwnRandom, SeededEnv
from verl_agent.errors import ConfigError


class Missing(SeededEnv):
    """Adapter of a library that nobody has installed."""

    env, module = "missing", "no_such_library"

    async def reset(self, item):
        raise NotImplementedError

    async def step(self, action):
        raise NotImplementedError

    async def close(self):
        pass


def test_tasks_are_seeds_of_each_name_and_splits_share_none():
    env = Missing(["a", "b"], 3, 2, False)
    assert [item.id for item in env.tasks("train")] == ["a:0", "a:1", "a:2", "b:0", "b:1", "b:2"]
    assert [item.data["seed"] for item in env.tasks("test")] == [FIRST_TEST_SEED, FIRST_TEST_SEED + 1] * 2
    assert {item.category for item in env.tasks("test")} == {"a", "b"}


def test_a_missing_library_is_named_with_the_command_that_installs_it():
    with pytest.raises(
        ConfigError, match=r"env\.name='missing' needs the package no_such_library.*verl-agent\[missing\]"
    ):
        Missing.library()
    (requirement,) = Missing.requirements()
    assert not requirement.present


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([], 1, 1, False), r"env\.options\.names=\[\] is not allowed"),
        ((3, 1, 1, False), r"env\.options\.names=3 is not allowed"),
        ((["a", "a"], 1, 1, False), "has a name twice"),
        (("a", 0, 1, False), r"env\.options\.train=0 is not allowed\. Allowed: a whole number from 1"),
        (("a", 1, True, False), r"env\.options\.test=True"),
        (("a", 1, 1, "yes"), r"env\.options\.allow_unseeded='yes' is not allowed"),
    ],
)
def test_options_that_are_not_allowed_raise_config_error_naming_the_key(arguments, message):
    with pytest.raises(ConfigError, match=message):
        Missing(*arguments)


def test_sessions_draw_from_generators_of_their_own():
    random.seed(7)
    before = random.getstate()
    alone = OwnRandom(1)
    with alone():
        expected = [random.random(), random.random()]
    first, second = OwnRandom(1), OwnRandom(2)
    drawn = []
    for _ in range(2):
        with first():
            drawn.append(random.random())
        with second():
            random.random()
    assert drawn == expected
    assert random.getstate() == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"url": "localhost:8000"}, r"env\.options\.url='localhost:8000' is not allowed.*http://localhost:8000"),
        ({"url": "http://h", "timeout_s": 0}, r"env\.options\.timeout_s=0"),
    ],
)
def test_openenv_rejects_options_before_it_asks_the_server(options, message):
    with pytest.raises(ConfigError, match=message):
        OpenEnv(**options)
