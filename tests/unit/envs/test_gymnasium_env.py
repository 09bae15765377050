"""Test that Gymnasium plays the environments of this package, and that its own check finds nothing."""

import warnings

import pytest

gymnasium = pytest.importorskip("gymnasium", reason="gymnasium is not installed: pip install 'verl-agent[gymnasium]'")

from gymnasium.utils.env_checker import check_env  # noqa: E402
from gymnasium.vector import AsyncVectorEnv  # noqa: E402

from verl_agent.envs.gymnasium_env import AnyText  # noqa: E402 - registers the environments
from verl_agent.errors import ConfigError  # noqa: E402

TEXTCRAFT = "verl_agent/TextCraft-v0"
SHORT = {"prompt": "short"}


@pytest.mark.parametrize(
    ("name", "keywords"),
    [(TEXTCRAFT, {"split": "easy_train", "options": SHORT}), ("verl_agent/GuessNumber-v0", {"split": "small_test"})],
)
def test_gymnasiums_own_check_passes_without_a_warning(name, keywords):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env = gymnasium.make(name, **keywords)
        check_env(env.unwrapped)
    env.close()


def test_the_oracle_solves_a_task_in_gymnasium():
    env = gymnasium.make(TEXTCRAFT, split="easy_train", options=SHORT, render_mode="ansi")
    text, info = env.reset(seed=3)
    assert info["messages"][-1]["content"] in text
    adapter = env.unwrapped.adapter
    item = next(item for item in adapter.tasks("easy_train") if item.id == info["task"])
    steps = [env.step(demo.action) for demo in adapter.demonstration(item)]
    assert (steps[-1][1], steps[-1][2]) == (1.0, True)
    assert env.render() == steps[-1][0]
    env.close()


def test_a_seed_draws_the_same_task_and_an_option_names_one():
    env = gymnasium.make(TEXTCRAFT, split="easy_train", options=SHORT)
    drawn = [env.reset(seed=seed)[1]["task"] for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert env.reset(options={"task": drawn[0]})[1]["task"] == drawn[0]
    with pytest.raises(ConfigError, match=r"options\['task'\]='minecraft:nothing' is no task of this split"):
        env.reset(options={"task": "minecraft:nothing"})
    env.close()


def test_the_adapter_of_gymnasium_is_not_registered_in_it():
    assert "verl_agent/Gymnasium-v0" not in gymnasium.registry


class Telling(gymnasium.Env):
    """Environment whose observation is the action twice."""

    observation_space = action_space = AnyText()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return "Écris à 🪵.", {}

    def step(self, action):
        return action * 2, 0.0, False, False, {}


@pytest.mark.parametrize("copy", [True, False])
def test_async_vector_env_gives_long_and_non_ascii_texts(copy):
    texts = ("x" * 300_000, "木\ud800\n\x00🪵")
    vector = AsyncVectorEnv([Telling, Telling], copy=copy)
    try:
        first, _ = vector.reset(seed=0)
        assert list(first) == ["Écris à 🪵."] * 2
        second = vector.step(texts)[0]
        assert list(second) == [text * 2 for text in texts]
        assert list(vector.step(("", "a"))[0]) == ["", "aa"]
        assert list(second) == ([text * 2 for text in texts] if copy else ["", "aa"])
    finally:
        vector.close()
