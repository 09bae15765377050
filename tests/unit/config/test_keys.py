"""Test that unknown keys and values of a wrong type raise an error that names the key."""

import random
import re
import subprocess
import sys
from copy import deepcopy
from functools import cache
from pathlib import Path

import pytest
import yaml
from hydra import compose, initialize_config_module
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf

import verl_agent
from verl_agent.config.catalogue import all_sections, may_change
from verl_agent.config.checks import check_keys
from verl_agent.config.keys import as_text, check_complete, check_kind, expand_home, literal, resolve
from verl_agent.config.search_path import register_config
from verl_agent.errors import ConfigError
from verl_agent.training.preflight.loggers import check_loggers


@cache
def base_config(name: str) -> DictConfig:
    register_config()
    with initialize_config_module("verl_agent.config", version_base=None):
        return compose(name)


def composed(*overrides: str, name: str = "agent_grpo") -> DictConfig:
    """Return a recipe after `key=value` changes; setting them is much quicker than composing."""
    config = deepcopy(base_config(name))
    for override in overrides:
        key, _, value = override.removeprefix("+").partition("=")
        OmegaConf.update(config, key, yaml.safe_load(value), merge=False, force_add=True)
    return config


def test_known_keys_pass():
    check_keys(composed("+env.options.prompt=short", "+ray_kwargs.ray_init.num_gpus=1"), "agent_base")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("+data.train_batch_sise=8", "data has no 'train_batch_sise'. Did you mean 'train_batch_size'?"),
        ("+horizn.max_turns=[1]", "Did you mean 'horizon'?"),
        ("+actor_rollout_ref.rollout.agent.num_worker=1", "Did you mean 'num_workers'?"),
    ],
)
def test_a_misspelt_key_raises_config_error_with_the_closest_key(override, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        check_keys(composed(override), "agent_base")


@pytest.mark.parametrize(
    ("override", "base", "message"),
    [
        ("trainer.save_freq=often", "agent_base", "trainer.save_freq='often' is not allowed. Allowed: a number"),
        ("trainer.save_freq=after_each_epoch", "agent_base", "Allowed: a number"),
        (
            "trainer.val_before_train=1",
            "agent_base",
            "trainer.val_before_train=1 is not allowed. Allowed: true or false",
        ),
        ("data.train_max_samples=true", "agent_base", "data.train_max_samples=True is not allowed. Allowed: a number"),
        ("horizon=4", "agent_base", "horizon=4 is not allowed. Allowed: a section with the keys max_turns, "),
        ("optim.lr=fast", "agent_sft", "optim.lr='fast' is not allowed. Allowed: a number"),
        ("trainer.test_freq=often", "agent_dpo", "trainer.test_freq='often' is not allowed. Allowed: a number"),
    ],
)
def test_a_value_of_another_type_raises_config_error(override, base, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        check_keys(composed(override, name="agent_grpo" if base == "agent_base" else base), base)


@pytest.mark.parametrize(
    ("overrides", "base"),
    [
        (("trainer.save_freq=3", "trainer.val_before_train=true", "actor_rollout_ref.actor.optim.lr=1"), "agent_base"),
        (("trainer.save_freq=after_each_epoch", "trainer.test_freq=2"), "agent_sft"),
        (("horizon.steps_per_stage=[20,30]", "horizon.max_turns=[4,6,8]"), "agent_base"),
        (("algorithm.rollout_correction.rollout_is_threshold='0.5_5.0'",), "agent_base"),
        (("+env.options.a=[1]", "trainer.max_actor_ckpt_to_keep=null"), "agent_base"),
    ],
)
def test_values_of_the_same_type_pass(overrides, base):
    check_keys(composed(*overrides, name="agent_grpo" if base == "agent_base" else base), base)


def test_a_missing_value_is_named():
    check_complete(DictConfig({"reward": {"path": "???"}, "model": {"path": "m"}}))
    with pytest.raises(ConfigError, match=r"lacks a value for data.n, model.path. model.path=DIR names a run"):
        check_complete(DictConfig({"model": {"path": "???"}, "data": {"n": "???"}}))


def test_a_missing_value_is_named_once_when_a_list_refers_to_it():
    horizon = {"eval_max_turns": "???", "max_turns": ["${horizon.eval_max_turns}"]}
    with pytest.raises(ConfigError, match=r"lacks a value for horizon\.eval_max_turns\.$"):
        check_complete(DictConfig({"horizon": horizon}))


def test_a_tilde_is_the_home_folder_in_every_path_of_a_recipe(monkeypatch):
    monkeypatch.setenv("HOME", "/home/ada")
    config = composed(
        "trainer.default_local_dir=~/runs/a",
        "trainer.rollout_data_dir=~/dumps",
        "env.train_tasks=~/ids.txt",
        "env.mixture=[{name: a, eval_tasks: ~/a.txt, options: {tasks: ~/b}}]",
        "env.options.folder=~/inside",
        "actor_rollout_ref.model.path=~/models/a",
        "judge.cache=~",
    )
    expand_home(config)
    assert config.episode.record_dir == "/home/ada/runs/a/episodes"
    assert (config.trainer.default_local_dir, config.trainer.rollout_data_dir) == (
        "/home/ada/runs/a",
        "/home/ada/dumps",
    )
    assert (config.env.train_tasks, config.judge.cache) == ("/home/ada/ids.txt", None)
    (entry,) = config.env.mixture
    assert (entry.eval_tasks, entry.options.tasks) == ("/home/ada/a.txt", "~/b")
    assert (config.env.options.folder, config.actor_rollout_ref.model.path) == ("~/inside", "~/models/a")
    learning = OmegaConf.create({"episodes": {"explored": {"records": ["~/played"]}}})
    expand_home(learning)
    assert learning.episodes.explored.records == ["/home/ada/played"]


def test_loggers_must_be_known_installed_and_include_file():
    check_loggers(["file", "tensorboard"])
    for names, message in (
        (["file", "tensorbord"], "trainer.logger='tensorbord' is not known. Did you mean 'tensorboard'?"),
        (["file", "swanlab"], "needs a package that is not installed: pip install swanlab"),
        ("tensorboard", "lacks 'file'"),
    ):
        with pytest.raises(ConfigError) as refused:
            check_loggers(names)
        assert message in str(refused.value)


def test_a_recipe_for_another_command_names_that_command():
    check_kind(composed(), "agent_base")
    with pytest.raises(ConfigError, match=r"not a recipe for `verl-agent sft`.* Run it with `verl-agent train`"):
        check_kind(composed(), "agent_sft")
    with pytest.raises(ConfigError, match=r"A recipe begins with `defaults: \[agent_eval\]`"):
        check_kind(DictConfig({"model": "m"}), "agent_eval")


API, RECORDED = "model.api.kind=openai", "it is read only with episodes.records=a list, not []."


@pytest.mark.parametrize(
    ("base", "changes", "message"),
    [
        ("agent_eval", ["agent.context.turns=9"], "agent.context.turns=9 has no effect: it is read only with agent."),
        ("agent_eval", ["evaluation.max_usd=2"], "evaluation.max_usd=2 has no effect: it is read only with model.api."),
        ("agent_eval", ["env.retries=0", "env.on_action_error=drop"], "env.on_action_error='drop' has no effect: "),
        ("agent_eval", ["model.api.name=m"], "model.api.name has no effect: it is read only with model.api.kind="),
        ("agent_eval", ["model.api.key_env=my-key"], "model.api.key_env has no effect: "),
        ("agent_eval", ["model.api.prices.input=1"], "model.api.prices.input has no effect: "),
        ("agent_eval", [API, "data.overlong_prompt=truncate_observation"], "data.overlong_prompt='truncate_observatio"),
        (
            "agent_eval",
            [API, "+data.apply_chat_template_kwargs.a=1"],
            "data.apply_chat_template_kwargs={'a': 1} has no",
        ),
        ("agent_sft", ["episodes.authors=[person]"], f"episodes.authors=['person'] has no effect: {RECORDED}"),
        ("agent_sft", ["episodes.labels=[good]"], f"episodes.labels=['good'] has no effect: {RECORDED}"),
        ("agent_sft", ["episodes.per_task=1"], f"episodes.per_task=1 has no effect: {RECORDED}"),
        ("agent_dpo", ["preference.pairs=edits", "preference.min_gap=1"], "preference.min_gap=1 has no effect: "),
    ],
)
def test_a_setting_without_effect_raises_config_error_with_its_condition(base, changes, message):
    with pytest.raises(ConfigError) as refused:
        check_keys(composed(*changes, name=base), base)
    assert str(refused.value).startswith(message)
    assert "my-key" not in str(refused.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("episodes.weight=rewards", "episodes.weight='rewards' is not allowed. Allowed: none, reward, task."),
        ("episodes.per_task=0", "episodes.per_task=0 is not allowed. Allowed: a whole number >= 1 or null."),
    ],
)
def test_a_value_that_is_not_allowed_is_reported_before_its_lack_of_effect(change, message):
    with pytest.raises(ConfigError) as refused:
        check_keys(composed(change, name="agent_sft"), "agent_sft")
    assert str(refused.value).startswith(message)


def test_what_is_known_about_settings_does_not_depend_on_the_modules_that_a_command_has_imported():
    """A section that is not registered would let settings without effect pass, and lack rules for a resumed run."""
    program = "from verl_agent.config.catalogue import may_change; print(*may_change('play'))"
    alone = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert sorted(alone.stdout.split()) == sorted(may_change("play"))
    root = Path(verl_agent.__file__).parent
    written = "".join(path.read_text(encoding="utf-8") for path in root.rglob("*.py"))
    assert len(all_sections()) == len(re.findall(r"^@settings\(", written, flags=re.MULTILINE))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        (0.5, "0.5"),
        ("runs/a b=c", "'runs/a b=c'"),
        ("it's", "'it\\'s'"),
        (["a", "b"], "['a','b']"),
        ([], "[]"),
    ],
)
def test_literal_formats_values_for_hydra(value, text):
    assert literal(value) == text
    assert OverridesParser.create().parse_override(f"key={text}").value() == value


def test_a_text_is_the_same_after_the_grammars_of_hydra_and_omegaconf():
    parts = ["\\", "'", '"', "$", "{", "}", "${", "${oc.env:HOME}", "a", " ", ",", "[", "]", "=", ":", "\n", "#", "é"]
    parser, luck = OverridesParser.create(), random.Random(0)
    for text in ["C:\\", "\\'", *("".join(luck.choices(parts, k=luck.randint(0, 7))) for _ in range(3_000))]:
        value = parser.parse_override(f"key={literal(text)}").value()
        assert OmegaConf.to_container(OmegaConf.create({"key": value}), resolve=True) == {"key": text}, text
        assert OmegaConf.create(as_text({"key": [text]})).key[0] == text


def test_a_resolved_text_that_reads_like_an_interpolation_is_refused():
    config = OmegaConf.create({"env": {"options": {"prompt": r"\${oc.env:HOME}", "same": "${env.name}"}, "name": "a"}})
    with pytest.raises(ConfigError, match=r"env\.options\.prompt='\$\{oc\.env:HOME\}' is not allowed"):
        resolve(config)
    config.env.options.prompt = "$HOME"
    resolve(config)
    assert OmegaConf.to_container(config) == {"env": {"options": {"prompt": "$HOME", "same": "a"}, "name": "a"}}
