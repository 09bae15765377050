"""Every recipe composes, is read to the last key, and is accepted by verl as far as no download is needed.

What would load a model or a tokenizer is left out: the recipes for GPUs name models of the hub. For them
`actor_rollout_ref.model` and `critic.model` are not built, and the length of their prompts is not measured.
"""

import re
from contextlib import chdir
from pathlib import Path

import pytest
from omegaconf import DictConfig, OmegaConf

from tests.support.composing import BASES, RECIPES, ROOT, SHARED, accepted_by_verl, kind, recipe, written_in
from tests.support.episodes import talk
from verl_agent.commands.dpo import plan as preference_plan
from verl_agent.config.keys import FIELDS, FREE, check_keys
from verl_agent.config.mixture import run_envs
from verl_agent.envs.registry import make_env
from verl_agent.envs.tasks import check_disjoint, select_tasks
from verl_agent.errors import ConfigError
from verl_agent.evaluation.settings import evaluation_config
from verl_agent.offline.preferences import PreferenceSettings
from verl_agent.offline.selection import EpisodeSource
from verl_agent.preflight.algorithms import check_algorithm
from verl_agent.preflight.lengths import check_budgets, check_shares
from verl_agent.preflight.rl import check_environment
from verl_agent.sections import section
from verl_agent.trace.record_files import EpisodeWriter


def of_kind(base: str) -> list:
    return [pytest.param(path, id=name(path)) for path in RECIPES if kind(path) == base]


def name(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


def resolved(path: Path) -> DictConfig:
    config = recipe(path)
    OmegaConf.resolve(config)
    return config


def test_there_are_recipes_of_every_kind():
    assert {kind(path) for path in RECIPES} == set(BASES)


@pytest.mark.parametrize("path", RECIPES, ids=name)
def test_the_first_line_says_what_it_is(path):
    first = path.read_text(encoding="utf-8").splitlines()[0]
    assert re.fullmatch(r"# \S.{20,}\.", first), first


@pytest.mark.parametrize("path", RECIPES, ids=name)
def test_every_key_of_a_recipe_is_one_that_exists(path):
    """A misspelt key in a YAML file is a new key to Hydra, which nothing would read."""
    check_keys(recipe(path), kind(path))


@pytest.mark.parametrize(
    ("shared", "upstream"),
    [
        ("agent_base", "ppo_trainer"),
        ("agent_grpo", "agent_base"),
        ("cpu", "agent_base"),
        ("agent_sft", "sft_trainer_engine"),
        ("agent_dpo", "sft_trainer_engine"),
        ("cpu_sft", "agent_sft"),
        ("cpu_eval", "agent_eval"),
    ],
)
def test_every_key_of_the_shared_files_is_one_that_exists(shared, upstream, tmp_path):
    (tmp_path / "only.yaml").write_text(f"defaults:\n  - {upstream}\n  - _self_\n")
    ours = ("env.", "agent.", "horizon.", "episode.", "episodes.", "preference.", "credit.")
    ours += ("data.env_", "data.agent", "data.episodes", "data.model_type", "data.preference")
    ours += ("trainer.v1.sampler.sampler_kwargs.", "ray_kwargs.ray_init.")  # verl hands both on as they are
    base = recipe(tmp_path / "only.yaml")
    keys = {key for key in written_in(SHARED / f"{shared}.yaml") if not key.startswith(FREE + ours)}
    assert not [key for key in keys if not key.endswith(FIELDS) and not exists(base, key)]


def exists(config: DictConfig, key: str) -> bool:
    """Whether a config has a key, whatever its value; below a `null` all names are free."""
    *parents, last = key.split(".")
    node = config
    for part in parents:
        if part not in list(node):
            return False
        if node._get_node(part)._is_none():
            return True
        node = node[part]
    return last in list(node)  # `in` of OmegaConf leaves out keys whose value is `???`


@pytest.mark.parametrize("path", of_kind("agent_base"))
def test_verl_accepts_a_training_recipe(path):
    accepted_by_verl(resolved(path))


@pytest.mark.parametrize("path", of_kind("agent_base"))
def test_a_training_recipe_passes_our_own_checks(path):
    config = resolved(path)
    parts = run_envs(OmegaConf.to_container(config))
    check_algorithm(OmegaConf.to_container(config), parts)
    with chdir(ROOT):
        for part in parts:
            check_environment(part, [part])
            check_budgets(config, part)
        check_shares(config, parts)


@pytest.mark.parametrize("path", of_kind("agent_base"))
def test_nothing_but_the_model_is_missing(path):
    """The model may come with the command, all else is the recipe's own."""
    missing = {key for key in OmegaConf.missing_keys(resolved(path)) if not key.startswith("reward.")}
    assert missing <= {"actor_rollout_ref.model.path", "critic.model.path"}


@pytest.mark.parametrize("path", of_kind("agent_base"))
def test_the_wiring_of_the_base_is_left_alone(path):
    """A recipe that drops one of these trains a single turn, on no environment, or on failed episodes."""
    config = resolved(path)
    assert config.actor_rollout_ref.rollout.agent.default_agent_loop == "verl_agent"
    assert config.data.custom_cls.name == "TaskDataset"
    assert config.trainer.v1.sampler.custom_sampler.name == "EpisodeSampler"
    assert config.trainer.v1.sampler.sampler_kwargs.group_size == config.actor_rollout_ref.rollout.n
    assert (config.trainer.use_v1, config.trainer.v1.trainer_mode) == (True, "verl_agent")


@pytest.mark.parametrize("path", of_kind("agent_sft"))
def test_a_warm_start_recipe_fits_its_environment(path):
    config = resolved(path)
    assert config.data.custom_cls.name == "EpisodeDataset"
    source = section("episodes", EpisodeSource, OmegaConf.to_container(config.episodes))
    assert source.oracle or source.records
    options = OmegaConf.to_container(config.env.options)
    with chdir(ROOT):
        make_env(config.env.name, options)
        tasks = select_tasks(config.env.name, config.env.train_tasks, options)
        check_disjoint(config.env.name, config.env.train_tasks, config.env.eval_tasks, options)
    assert config.data.train_batch_size <= len(tasks)


@pytest.mark.parametrize("path", of_kind("agent_dpo"))
def test_a_preference_recipe_fits_its_environment(path):
    config = resolved(path)
    assert config.data.custom_cls.name == "PairDataset"
    section("preference", PreferenceSettings, OmegaConf.to_container(config.preference))
    assert config.data.train_batch_size % config.data.micro_batch_size_per_gpu == 0
    with chdir(ROOT):
        make_env(config.env.name, config.env.options)
        assert select_tasks(config.env.name, config.env.eval_tasks)


def test_pairs_of_another_environment_are_refused(tmp_path):
    """Records of a run are named by a path, and a path is soon mistaken."""
    with EpisodeWriter(tmp_path / "episodes.jsonl") as writer:
        for reply, reward in (("right", 1.0), ("wrong", 0.0)):
            writer.write(talk(reply, reward, purpose="collection"))
    config = resolved(ROOT / "recipes/guess_number/dpo_cpu.yaml")
    config.preference.records = str(tmp_path)
    with pytest.raises(ConfigError, match=r"preference.records=.* are of talk, and .* env.name='guess_number'"):
        preference_plan(config)


@pytest.mark.parametrize("path", of_kind("agent_eval"))
def test_an_evaluation_recipe_fits_its_environment(path):
    config = recipe(path, "model.path=some/model")
    settings = evaluation_config(OmegaConf.to_container(config, resolve=True, throw_on_missing=True))
    env = settings.agent.env
    make_env(env.name, env.options)
    with chdir(ROOT):
        assert select_tasks(env.name, settings.evaluation.tasks, env.options)


def test_a_recipe_is_named_once():
    """Runs and their folders are named after it."""
    trained = [path for path in RECIPES if kind(path) not in ("agent_eval", "agent_evolve")]
    names = [resolved(path).trainer.experiment_name for path in trained]
    assert len(set(names)) == len(names)
