"""Tests of every recipe: it composes, every key is read, and verl accepts it as far as no download is needed.

Nothing here loads a model or a tokenizer, because the GPU recipes name models of the hub. The sections
`actor_rollout_ref.model` and `critic.model` are not built, and the length of prompts is not measured.
"""

import ast
import pickle
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import chdir
from functools import cache
from pathlib import Path
from zlib import crc32

import pytest
from omegaconf import DictConfig, OmegaConf
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from tests.support import training_runs
from tests.support.composing import (
    BASES,
    COMMON,
    RECIPES,
    ROOT,
    SHARED,
    accepted_by_verl,
    defaults,
    kind,
    recipe,
    written_in,
)
from tests.support.environments import skip_without_packages
from tests.support.episodes import talk
from tests.support.serving import serving_app
from verl_agent.config.checks import FIELDS, check_effects, check_keys
from verl_agent.config.keys import FREE, as_text
from verl_agent.config.plan import OfflinePlan, RunPlan
from verl_agent.config.settings import read_env
from verl_agent.envs.tasks import check_disjoint
from verl_agent.errors import ConfigError
from verl_agent.evaluation.recorded_play import play_of_training
from verl_agent.evaluation.settings import evaluation_base, evaluation_config, read_evaluation
from verl_agent.sections import section
from verl_agent.trace.record_files import EpisodeWriter
from verl_agent.training.offline.dpo import pair_rows
from verl_agent.training.offline.preferences import PreferenceSettings
from verl_agent.training.offline.selection import EpisodeSource
from verl_agent.training.preflight.condition_table import CONDITIONS
from verl_agent.training.preflight.conditions import check_conditions
from verl_agent.training.preflight.lengths import check_micro_batches, check_shares
from verl_agent.training.preflight.rl import check_environment


def of_kind(base: str) -> list:
    """Return pytest parameters for all recipes on a base."""
    return [pytest.param(path, id=name(path)) for path in RECIPES if kind(path) == base]


def name(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


def common(path: Path) -> list[Path]:
    """Return the common files of its folder that a recipe names in its `defaults`."""
    return [file for file in COMMON if file.parent == path.parent and file.stem in defaults(path)]


def resolved(path: Path) -> DictConfig:
    config = pickle.loads(_resolved(path))
    assert isinstance(config, DictConfig)
    return config


@cache
def _resolved(path: Path) -> bytes:
    config = recipe(path)
    OmegaConf.resolve(config)
    return pickle.dumps(config)


def test_every_base_has_a_recipe():
    assert {kind(path) for path in RECIPES} == set(BASES)


@pytest.mark.parametrize("path", RECIPES, ids=name)
def test_a_recipe_opens_with_its_purpose_and_its_needs(path):
    first, second, *_ = path.read_text(encoding="utf-8").splitlines()
    assert re.fullmatch(r"# [A-Z].{20,}\.", first), first
    assert re.match(r"# Needs: \S", second), second


@pytest.mark.parametrize("path", COMMON, ids=name)
def test_a_common_file_opens_with_its_purpose_and_is_used(path):
    purpose = r"# (Environment( and agent)? of|Limits of an episode in) the [CG]PU recipes"
    assert re.match(purpose, path.read_text(encoding="utf-8"))
    assert any(path in common(other) for other in RECIPES)


MAY_REPEAT = {
    "trainer.n_gpus_per_node": "every GPU recipe states its machine, verl's default of 8 included",
    "data.max_prompt_length": "every recipe states its limits, verl's default of 512 included",
}
"""Keys that may have the value of the base, and the reason."""
LAYERS = [
    pytest.param(path, layer, id=f"{name(path)}-{layer.stem}") for path in RECIPES for layer in (path, *common(path))
]
"""Pairs of a recipe and a file with values of it: the recipe itself, its `env*.yaml` or its `limits*.yaml`."""


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder for recipes without values."""
    return tmp_path_factory.mktemp("bases")


def base_of(path: Path, folder: Path) -> DictConfig:
    """Return what a recipe names in its `defaults`, without its common files; many recipes name the same."""
    files = [file.stem for file in common(path)]
    entries = [entry for entry in OmegaConf.load(path).get("defaults", ["_self_"]) if entry not in files]
    if (other := path.with_name(f"{entries[0]}.yaml")).is_file():
        return recipe(other)
    text = OmegaConf.to_yaml({"defaults": entries})
    empty = folder / f"{crc32(text.encode())}.yaml"
    empty.write_text(text)
    return recipe(empty)


@pytest.mark.parametrize(("path", "layer"), LAYERS)
def test_no_recipe_repeats_a_value_of_its_base(path, layer, bases):
    below = [base_of(path, bases), *(OmegaConf.load(file) for file in common(path) if file != layer)]
    *others, own = (OmegaConf.to_container(config) for config in (*below, OmegaConf.load(layer)))
    for key in written_in(layer) - MAY_REPEAT.keys():
        given = [value for config in others if (value := raw(config, key)) is not ...]
        assert not given or given[-1] != raw(own, key), key


TWINS = ("grpo_135m",)
"""Recipes that repeat another one on other hardware."""
LIMITS = [path for path in COMMON if path.stem.startswith("limits")]


@pytest.mark.parametrize("limits", LIMITS, ids=name)
def test_recipes_with_the_same_limits_do_not_repeat_a_value(limits):
    """An equal value belongs in the common file. Otherwise, training and evaluation can drift apart."""
    recipes = [path for path in RECIPES if limits in common(path) and path.stem not in TWINS]
    assert {kind(path) for path in recipes} == {"agent_base", "agent_eval"}
    loaded = {path: OmegaConf.to_container(OmegaConf.load(path)) for path in recipes}
    written = [(key, str(raw(loaded[path], key))) for path in recipes for key in written_in(path)]
    assert not [pair for pair, count in Counter(written).items() if count > 1]


def raw(node: object, key: str) -> object:
    """Return the value at a dotted key of an unresolved config; `...` if the key is absent."""
    for part in key.split("."):
        if not isinstance(node, dict) or part not in node:
            return ...
        node = node[part]
    return node


@pytest.mark.parametrize("path", RECIPES, ids=name)
def test_every_key_of_a_recipe_exists(path):
    """Hydra takes a misspelt key in a YAML file as a new key, which nothing would read."""
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
def test_every_key_of_a_shared_file_exists_upstream(shared, upstream, tmp_path):
    (tmp_path / "only.yaml").write_text(f"defaults:\n  - {upstream}\n  - _self_\n")
    ours = ("env.", "agent.", "horizon.", "episode.", "episodes.", "preference.", "credit.", "judge.")
    ours += ("data.agent", "data.episodes", "data.model_type", "data.preference", "data.overlong_prompt")
    ours += tuple(f"trainer.{name}" for name in ("check_memory", "max_restarts", "hang_timeout_s", "test_best", "play"))
    ours += ("actor_rollout_ref.rollout.agent.agent_loop_manager_class",)  # verl reads it, its YAML lacks it
    ours += ("trainer.v1.sampler.sampler_kwargs.", "ray_kwargs.ray_init.")  # verl passes both on unchanged
    base = recipe(tmp_path / "only.yaml")
    keys = {key for key in written_in(SHARED / f"{shared}.yaml") if not key.startswith(FREE + ours)}
    unlisted = (*FIELDS, ".enable_sleep_mode")  # fields of verl's dataclasses; its YAML omits them
    assert not [key for key in keys if not key.endswith(unlisted) and not exists(base, key)]


def exists(config: DictConfig, key: str) -> bool:
    """Return True if a config has the key; below a `null` every name is allowed."""
    *parents, last = key.split(".")
    node = config
    for part in parents:
        if part not in list(node):
            return False
        if node._get_node(part)._is_none():
            return True
        node = node[part]
    return last in list(node)  # OmegaConf's own `in` is False for keys with the value `???`


@pytest.mark.parametrize("path", of_kind("agent_base"))
def test_verl_accepts_a_training_recipe(path):
    accepted_by_verl(resolved(path))


@pytest.fixture(scope="module")
def openenv_url():
    """URL of a server that describes the actions of an OpenEnv environment."""
    schema = {"action": {"properties": {"text": {"type": "string"}}, "required": ["text"]}}
    app = Starlette(routes=[Route("/schema", lambda request: JSONResponse(schema))])
    with serving_app(app) as running:
        yield running.url


@pytest.mark.parametrize("path", of_kind("agent_base"))
def test_a_training_recipe_passes_the_checks_before_a_run(path, openenv_url):
    config = resolved(path)
    if config.env.name == "openenv":  # its actions are those that its server describes
        config.env.options.url = openenv_url
    plan = RunPlan.of(OmegaConf.to_container(config))
    for part in plan.envs:
        skip_without_packages(part.env.name)
    check_conditions(plan.values, CONDITIONS)
    check_micro_batches(plan)
    with chdir(ROOT):
        for part in plan.envs:
            check_environment(part, [part])
        check_shares(plan.envs, plan.batch.tasks, plan.batch.most)


@pytest.mark.parametrize("path", of_kind("agent_base"))
def test_the_settings_of_a_runs_play_are_those_of_an_evaluation(path):
    plan = RunPlan.of(OmegaConf.to_container(resolved(path)))
    envs = play_of_training(plan).envs
    assert [*envs] == [env.label for env in plan.envs]
    for env in plan.envs:
        given = {**envs[env.label], "model": {"path": "smollm2-135m"}, "horizon": {"eval_max_turns": 3}}
        played = read_evaluation(OmegaConf.merge(evaluation_base(), as_text(given)))
        assert (played.run.env.options, played.run.agent) == (env.env.options, env.agent)
        assert played.data.max_prompt_length == plan.lengths.prompt


@pytest.mark.parametrize("path", of_kind("agent_base"))
def test_only_the_model_may_be_missing(path):
    """The command may set the model. The recipe sets everything else."""
    missing = {key for key in OmegaConf.missing_keys(resolved(path)) if not key.startswith("reward.")}
    assert missing <= {"actor_rollout_ref.model.path", "critic.model.path"}


@pytest.mark.parametrize("path", of_kind("agent_base"))
def test_a_recipe_keeps_the_classes_of_the_base(path):
    """Without one of these, a run trains on single turns, without an environment, or on failed episodes."""
    config = resolved(path)
    assert config.actor_rollout_ref.rollout.agent.default_agent_loop == "verl_agent"
    assert config.data.custom_cls.name == "TaskDataset"
    assert config.trainer.v1.sampler.custom_sampler.name == "EpisodeSampler"
    assert config.trainer.v1.sampler.sampler_kwargs.group_size == config.actor_rollout_ref.rollout.n
    assert (config.trainer.use_v1, config.trainer.v1.trainer_mode) == (True, "verl_agent")


@pytest.mark.parametrize("path", of_kind("agent_sft"))
def test_a_warm_start_recipe_fits_its_environment(path):
    config = resolved(path)
    source = section("episodes", EpisodeSource, OmegaConf.to_container(config.episodes))
    assert source.oracle or source.records
    played = read_env(OmegaConf.to_container(config))
    with chdir(ROOT):
        tasks, held_out = played.tasks(played.env.train_tasks), played.tasks(played.env.eval_tasks)
        check_disjoint(tasks, held_out, {"env.train_tasks": "", "env.eval_tasks": ""})
    assert config.data.train_batch_size <= len(tasks)


@pytest.mark.parametrize("path", of_kind("agent_dpo"))
def test_a_preference_recipe_fits_its_environment(path):
    config = resolved(path)
    section("preference", PreferenceSettings, OmegaConf.to_container(config.preference))
    assert config.data.train_batch_size % config.data.micro_batch_size_per_gpu == 0
    with chdir(ROOT):
        assert read_env(OmegaConf.to_container(config)).tasks(config.env.eval_tasks)


def test_dpo_rejects_records_of_another_environment(tmp_path):
    """Records are given as a path, which is easy to mistake."""
    with EpisodeWriter(tmp_path / "episodes.jsonl") as writer:
        for reply, reward in (("right", 1.0), ("wrong", 0.0)):
            writer.write(talk(reply, reward, purpose="collection"))
    config = resolved(ROOT / "recipes/guess_number/dpo_cpu.yaml")
    config.preference.records = str(tmp_path)
    with pytest.raises(
        ConfigError, match=r"preference.records=.* has episodes of talk, but .* env.name='guess_number'"
    ):
        pair_rows(OfflinePlan.of(OmegaConf.to_container(config)))


@pytest.mark.parametrize("path", of_kind("agent_eval"))
def test_an_evaluation_recipe_fits_its_environment(path):
    behind_api = recipe(path).model.api.kind is not None
    config = recipe(path, "model.api.name=some-model" if behind_api else "model.path=some/model")
    skip_without_packages(config.env.name)
    settings = evaluation_config(OmegaConf.to_container(config, resolve=True, throw_on_missing=True))
    with chdir(ROOT):
        assert settings.run.tasks(settings.evaluation.tasks)


def test_recipes_have_different_experiment_names():
    """Folders of runs have these names."""
    trained = [path for path in RECIPES if kind(path) not in ("agent_eval", "agent_evolve")]
    names = [resolved(path).trainer.experiment_name for path in trained]
    assert len(set(names)) == len(names)


def tiny_recipes() -> Iterator[tuple[str, str, Sequence[str]]]:
    """Yield name, text and overrides of the recipes that slow tests write; a run is the first to read them."""
    for path in sorted((ROOT / "tests").rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        for node in ast.parse(source).body if "\nRECIPE = " in source else ():
            match node:
                case ast.Assign(targets=[ast.Name("RECIPE")], value=ast.Constant(value=str(text))) if "{{" not in text:
                    yield path.stem, text, ()
    yield "ppo", training_runs.RECIPE, training_runs.PPO


@pytest.mark.parametrize(("text", "overrides"), [pytest.param(*rest, id=name) for name, *rest in tiny_recipes()])
def test_recipes_of_slow_tests_set_no_key_without_effect(text, overrides, tmp_path):
    (tmp_path / "tiny.yaml").write_text(text)
    if kind(tmp_path / "tiny.yaml") == "agent_base":
        check_effects(recipe(tmp_path / "tiny.yaml", *overrides), "agent_base")
