"""A run has one environment, or a mixture whose parts say only what differs."""

import pytest

from verl_agent.config.mixture import run_envs
from verl_agent.errors import ConfigError


def config(*parts: dict, **env: object) -> dict:
    return {
        "env": {"name": "both", "retries": 7, "options": {"tolerant": True}, "mixture": list(parts) or None, **env},
        "horizon": {"max_turns": [3, 6], "steps_per_stage": 10},
        "episode": {"max_tokens_per_turn": 64},
        "credit": {"step_cost": 0.1},
        "agent": {"name": "react"},
    }


def test_one_environment_is_a_run_of_one_part():
    (part,) = run_envs(config(name="guess_number"))
    assert (part.label, part.env.name, part.env.options) == ("guess_number", "guess_number", {"tolerant": True})


def test_a_part_takes_from_the_run_what_it_does_not_say():
    first, second = run_envs(
        config(
            {"name": "textcraft", "weight": 3, "train_tasks": "easy_train", "horizon": {"max_turns": [4, 8]}},
            {"name": "guess_number", "options": {"tolerant": False}, "episode": {"max_tokens": 100}},
        )
    )
    assert (first.label, first.weight, first.env.train_tasks, first.env.retries) == ("textcraft", 3, "easy_train", 7)
    assert (first.settings.horizon.max_turns, first.settings.horizon.steps_per_stage) == ([4, 8], 10)
    assert (second.weight, second.settings.horizon.max_turns, second.settings.episode.max_tokens) == (1, [3, 6], 100)
    assert second.settings.credit.step_cost == 0.1
    assert first.env.options == {}, "options are of one environment"


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([{}], "env.mixture[0] has no name."),
        ([{"name": "a", "wieght": 1}], "env.mixture[0].wieght is not a setting. Did you mean 'weight'?"),
        ([{"name": "a", "weight": 0}], "env.mixture[0].weight must be a number > 0, got 0."),
        ([{"name": "a", "label": "a/b"}], "env.mixture[0].label='a/b' must consist of letters, digits, _ and -."),
        ([{"name": "a"}, {"name": "a"}], "env.mixture has several parts called a. Give each a label of its own."),
        ([{"name": "a", "horizon": {"max_turns": [6, 3]}}], "env.mixture[0] (a): horizon.max_turns must not shrink"),
        ([{"name": "a"}, {"name": "b", "credit": {"place": "turn"}}], "credit.place must be the same for all parts"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_name(parts, message):
    with pytest.raises(ConfigError) as error:
        run_envs(config(*parts))
    assert str(error.value).startswith(message)


@pytest.mark.parametrize("mixture", [[], {}, "textcraft"])
def test_a_mixture_of_nothing_is_refused(mixture):
    with pytest.raises(ConfigError, match=r"env\.mixture must be a list of parts"):
        run_envs(config(mixture=mixture))
