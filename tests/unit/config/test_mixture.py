"""Test that a run has one environment or a mixture, whose entries hold only differences."""

import pytest

from verl_agent.config.mixture import run_envs
from verl_agent.errors import ConfigError


def config(*entries: dict, **env: object) -> dict:
    return {
        "env": {"name": "both", "retries": 7, "options": {"tolerant": True}, "mixture": list(entries) or None, **env},
        "horizon": {"max_turns": [3, 6], "steps_per_stage": 10},
        "episode": {"max_tokens_per_turn": 64},
        "credit": {"step_cost": 0.1},
        "agent": {"name": "react"},
    }


def test_a_run_without_a_mixture_has_one_environment():
    (run_env,) = run_envs(config(name="guess_number"))
    assert (run_env.label, run_env.env.name, run_env.env.options) == (
        "guess_number",
        "guess_number",
        {"tolerant": True},
    )


def test_an_entry_inherits_the_settings_that_it_does_not_override():
    first, second = run_envs(
        config(
            {"name": "textcraft", "weight": 3, "train_tasks": "easy_train", "horizon": {"max_turns": [4, 8]}},
            {"name": "guess_number", "options": {"tolerant": False}, "episode": {"max_tokens": 100}},
        )
    )
    assert (first.label, first.weight, first.env.train_tasks, first.env.retries) == ("textcraft", 3, "easy_train", 7)
    assert (first.horizon.max_turns, first.horizon.steps_per_stage) == ([4, 8], 10)
    assert (second.weight, second.horizon.max_turns, second.episode.max_tokens) == (1, [3, 6], 100)
    assert second.credit.step_cost == 0.1
    assert first.env.options == {}, "options are not inherited"


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([{}], "env.mixture[0].name is missing."),
        ([{"name": ""}], "env.mixture[0].name='' is not allowed. Allowed: a text with 1 or more characters."),
        ([{"name": "a", "wieght": 1}], "env.mixture[0].wieght is not a setting. Did you mean 'weight'?"),
        ([{"name": "a", "weight": 0}], "env.mixture[0].weight=0 is not allowed. Allowed: a number > 0."),
        ([{"name": "a", "weight": float("inf")}], "env.mixture[0].weight=inf is not allowed."),
        ([{"name": "a", "horizon": [4]}], "env.mixture[0].horizon=[4] is not allowed."),
        (
            [{"name": "a", "label": "a/b"}],
            "env.mixture[0].label='a/b' is not allowed. Allowed: letters, digits, _ and -.",
        ),
        (
            [{"name": "a"}, {"name": "a"}],
            "env.mixture has several environments with the label a. Set a different label",
        ),
        ([{"name": "a", "episode": {"record_tokens": None}}], "env.mixture[0].episode.record_tokens is not allowed: a"),
        ([{"name": "a", "horizon": {"max_turns": [6, 3]}}], "env.mixture[0] (a): horizon.max_turns must not shrink"),
        ([{"name": "a"}, {"name": "b", "credit": {"place": "turn"}}], "credit.place must be the same for all environ"),
    ],
)
def test_an_invalid_mixture_raises_config_error_naming_the_key(entries, message):
    with pytest.raises(ConfigError) as error:
        run_envs(config(*entries))
    assert str(error.value).startswith(message)


@pytest.mark.parametrize("mixture", [[], {}, "textcraft"])
def test_a_mixture_must_be_a_list_of_environments(mixture):
    with pytest.raises(ConfigError, match=r"env\.mixture must be a list of environments"):
        run_envs(config(mixture=mixture))
