"""Test that invalid settings raise an error that names the key, the value and the allowed values."""

import pytest

from verl_agent.config.settings import read_run_env
from verl_agent.envs.settings import EnvSettings, HostSettings
from verl_agent.errors import ConfigError
from verl_agent.evaluation.settings import evaluation_config
from verl_agent.horizon import Horizon
from verl_agent.rollout.settings import EpisodeSettings
from verl_agent.sections import section


def config(**changes) -> dict:
    """A whole config; `env__name="x"` changes `env.name`."""
    sections = {
        "env": {"name": "guess_number"},
        "horizon": {"max_turns": [3, 6], "steps_per_stage": 10},
        "episode": {"max_tokens_per_turn": 64},
        "agent": {},
        "trainer": {"anything": "of verl's"},
    }
    for key, value in changes.items():
        name, _, setting = key.partition("__")
        sections[name] = {**sections.get(name, {}), setting: value} if setting else value
    return sections


def test_sections_become_typed_settings():
    settings = read_run_env(config(env__retries=0, episode__on_truncated_turn="play"))
    assert settings.env == EnvSettings("guess_number", retries=0)
    assert settings.horizon == Horizon([3, 6], 10)
    assert settings.episode == EpisodeSettings(64, "play")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"env__timeout": 5}, "env.timeout is not a setting. Did you mean 'timeout_s'?"),
        (
            {"episode__zzz": 1},
            "episode.zzz is not a setting. Known: max_tokens, max_tokens_per_turn, on_truncated_turn",
        ),
        ({"env__hosts": {"were": "ray"}}, "env.hosts.were is not a setting. Did you mean 'where'?"),
        ({"horizon__adaptive": {"sucess_above": 0.5}}, "horizon.adaptive.sucess_above is not a setting. Did you mean"),
        ({"credit": {"gamma": 1}}, "credit.gamma is not a setting."),
        ({"episode__record_tokens": {"every": 0}}, "episode.record_tokens.every=0 is not allowed. Allowed: a whole"),
        ({"episode__record_tokens": True}, "episode.record_tokens=True is not allowed. Allowed: a section"),
        ({"env__timeout_s": float("nan")}, "env.timeout_s=nan is not allowed. Allowed: a finite number > 0."),
        ({"env__retries": 1.5}, "env.retries=1.5 is not allowed. Allowed: a whole number >= 0."),
        ({"env__overlap": 1}, "env.overlap=1 is not allowed. Allowed: true or false."),
        ({"env__hosts": {"where": "lokal"}}, "env.hosts.where='lokal' is not allowed. Allowed: auto, local, ray, inl"),
        ({"env__hosts": {"count": 0}}, "env.hosts.count=0 is not allowed. Allowed: a whole number >= 1 or null."),
        ({"env__hosts": {"memory_mb": 0}}, "env.hosts.memory_mb=0 is not allowed. Allowed: a whole number >= 64 or"),
        ({"env__hosts": {"sessions": -1}}, "env.hosts.sessions=-1 is not allowed. Allowed: a whole number >= 1 or"),
        ({"env__hosts": {"wait_s": 0}}, "env.hosts.wait_s=0 is not allowed. Allowed: a number > 0."),
        ({"env__hosts": {"idle_s": 0}}, "env.hosts.idle_s=0 is not allowed. Allowed: a number > 0."),
        ({"env__hosts": {"num_cpus": -1}}, "env.hosts.num_cpus=-1 is not allowed. Allowed: a number >= 0."),
        ({"env__max_env_error_rate": 50}, "env.max_env_error_rate=50 is not allowed. Allowed: a number from 0 to 1."),
        ({"horizon__steps_per_stage": "two"}, "horizon.steps_per_stage='two' is not allowed. Allowed: a whole number"),
        ({"episode__max_tokens": 8}, "episode.max_tokens=8 must be at least episode.max_tokens_per_turn=64, or null."),
        ({"episode__max_tokens_per_turn": True}, "episode.max_tokens_per_turn=True is not allowed."),
        (
            {"episode__on_truncated_turn": "pley"},
            "episode.on_truncated_turn='pley' is not allowed. Allowed: stop, play.",
        ),
    ],
)
def test_invalid_values_raise_config_error_naming_the_key(changes, message):
    with pytest.raises(ConfigError) as error:
        read_run_env(config(**changes))
    assert str(error.value).startswith(message)


def test_a_whole_number_is_accepted_as_a_number():
    assert read_run_env(config(env__timeout_s=5)).env.timeout_s == 5


def test_hosts_are_a_nested_section():
    assert read_run_env(config(env__hosts={"count": 4})).env.hosts == HostSettings(count=4)
    assert read_run_env(config()).env.hosts == HostSettings(where="auto")


def test_an_evaluation_rejects_ray_hosts():
    sections = config(env__hosts={"where": "ray"})
    sections |= {"data": {"max_prompt_length": 64, "max_response_length": 64}, "engine": {}, "evaluation": {}}
    with pytest.raises(ConfigError, match=r"env\.hosts\.where='ray' is for training\. Allowed .*: auto, local, inline"):
        evaluation_config(sections)


def test_the_concurrency_of_an_evaluation_is_named_before_its_copy_in_the_engine():
    sections = config(evaluation={"concurrency": 0}, engine={"max_num_seqs": 0})
    sections |= {"data": {"max_prompt_length": 64, "max_response_length": 64}}
    with pytest.raises(ConfigError, match=r"^evaluation\.concurrency=0 is not allowed\."):
        evaluation_config(sections)


@pytest.mark.parametrize("limit", ["x", None, 0])
def test_an_invalid_turn_limit_of_an_evaluation_names_the_key_of_its_recipe(limit):
    sections = config(horizon={"eval_max_turns": limit, "max_turns": [limit]})
    sections |= {"data": {"max_prompt_length": 64, "max_response_length": 64}, "engine": {}, "evaluation": {}}
    with pytest.raises(ConfigError) as error:
        evaluation_config(sections)
    assert str(error.value) == f"horizon.eval_max_turns={limit!r} is not allowed. Allowed: a whole number >= 1."


def test_a_missing_key_is_named_with_its_allowed_values():
    with pytest.raises(ConfigError) as error:
        section("horizon", Horizon, {})
    assert str(error.value) == "horizon.max_turns is missing. Allowed: a list of 1 or more whole numbers >= 1."


def test_all_invalid_keys_of_a_section_are_named():
    with pytest.raises(ConfigError) as error:
        section("episode", EpisodeSettings, {"max_tokens_per_turn": "many", "record_dir": 3})
    assert str(error.value).splitlines() == [
        "episode.max_tokens_per_turn='many' is not allowed. Allowed: a whole number >= 1.",
        "episode.record_dir=3 is not allowed. Allowed: a text or null.",
    ]


@pytest.mark.parametrize("name", ["env", "horizon", "episode", "agent"])
def test_a_config_without_a_required_section_raises_config_error(name):
    with pytest.raises(ConfigError, match=f"no section '{name}'. Start from a recipe"):
        read_run_env({key: values for key, values in config().items() if key != name})
