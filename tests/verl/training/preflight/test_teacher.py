"""Test the checks of a teacher: its tokenizer, its vocabulary, its context, and its memory in the estimates."""

from contextlib import chdir
from dataclasses import replace

import pytest
from omegaconf import OmegaConf
from transformers import AutoModelForCausalLM

from tests.support.composing import RECIPES, ROOT, kind, merged, recipe
from tests.support.environments import skip_without_packages
from tests.support.models import write_byte_model, write_byte_tokenizer
from verl_agent.config.checks import check_keys
from verl_agent.config.plan import RunPlan
from verl_agent.errors import ConfigError
from verl_agent.training.preflight.condition_table import CONDITIONS
from verl_agent.training.preflight.conditions import check_conditions
from verl_agent.training.preflight.estimates import SHAPES, cpu_step_s, estimate_footprint
from verl_agent.training.preflight.lengths import check_micro_batches
from verl_agent.training.preflight.machine import needed_gb
from verl_agent.training.preflight.teacher import check_teacher
from verl_agent.training.verl_config import for_trainer, identity, to_verl

TEXTS = ["Guess a whole number from 1 to 12. Higher. Lower."]
KEY, POLICY = "distillation.teacher_models.teacher_model.model_path", "actor_rollout_ref.model.path"
DISTILL = "+overlay/algorithm=distill"


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def policy(models):
    return write_byte_model(models / "policy", TEXTS, vocabulary=300)


def taught(policy, teacher, *changes):
    config = recipe(
        ROOT / "recipes/guess_number/grpo_cpu.yaml", DISTILL, f"{POLICY}={policy}", f"{KEY}={teacher}", *changes
    )
    return RunPlan.read(config)


def check(policy, teacher, *changes):
    plan = taught(policy, teacher, *changes).located()
    check_teacher(plan.teacher.path, plan.actor, plan.lengths)


def test_a_larger_model_with_the_same_tokenizer_may_teach(models, policy):
    check(policy, write_byte_model(models / "larger", TEXTS, vocabulary=300, hidden_size=256))


def test_another_tokenizer_is_refused_with_a_token_that_differs(models, policy):
    teacher = write_byte_model(models / "other", ["xyz " * 9], vocabulary=262)
    with pytest.raises(ConfigError, match=r"model_path=.*another tokenizer .* tokens differ, such as .*verl-agent sft"):
        check(policy, teacher)


def test_a_teacher_with_fewer_token_ids_is_refused(models, policy):
    tokenizer = write_byte_tokenizer(models / "wide", TEXTS, vocabulary=300)
    model = AutoModelForCausalLM.from_pretrained(policy)
    model.resize_token_embeddings(len(tokenizer) + 64)
    model.save_pretrained(models / "wide")
    check(policy, models / "wide")
    with pytest.raises(ConfigError, match=rf"has {len(tokenizer)} tokens, and the policy writes {len(tokenizer) + 64}"):
        check(models / "wide", policy)


def test_a_teacher_that_cannot_read_the_longest_episode_is_refused(models, policy):
    teacher = write_byte_model(models / "short", TEXTS, vocabulary=300, max_position_embeddings=64)
    with pytest.raises(ConfigError, match=r"model_path=.* supports at most 64"):
        check(policy, teacher)


def test_a_teacher_that_does_not_exist_is_refused_by_its_key(policy):
    with pytest.raises(ConfigError, match=rf"^{KEY}='runs/no_teacher' does not exist"):
        taught(policy, "runs/no_teacher").located()


def test_the_teacher_counts_in_the_memory_of_a_cpu_and_in_its_time(models, policy):
    teacher = write_byte_model(models / "heavy", TEXTS, vocabulary=300, hidden_size=512, num_hidden_layers=8)
    with_teacher = taught(policy, teacher)
    without = replace(with_teacher, teacher=None, estimation=replace(with_teacher.estimation, distils=False))
    assert needed_gb(with_teacher)[0] > needed_gb(without)[0]
    shape = SHAPES["smollm2-135m"]
    assert cpu_step_s(with_teacher, shape, None, 1e11) > cpu_step_s(without, shape, None, 1e11)


@pytest.mark.parametrize("lora", [0, 32])
def test_a_larger_teacher_takes_more_of_a_gpu_also_with_lora(lora):
    peaks = []
    for teacher in ("Qwen/Qwen2.5-1.5B-Instruct", "Qwen/Qwen2.5-7B-Instruct"):
        config = recipe(ROOT / "recipes/textcraft/grpo.yaml", DISTILL, "offload=false", f"{KEY}={teacher}")
        config.actor_rollout_ref.model.lora_rank = lora
        peaks.append(estimate_footprint(RunPlan.read(config), SHAPES["Qwen/Qwen2.5-3B-Instruct"]).train_gb)
    ranks = RunPlan.read(config).layout.ranks
    sizes = [SHAPES[f"Qwen/Qwen2.5-{size}-Instruct"].parameters for size in ("1.5B", "7B")]
    assert peaks[1] - peaks[0] == pytest.approx(4 * (sizes[1] - sizes[0]) / ranks / 1e9)


def test_verls_trainer_gets_the_folder_of_the_teacher_and_starts_no_engine_for_it(models, policy):
    plan = taught(policy, write_byte_model(models / "larger", TEXTS, vocabulary=300, hidden_size=256)).located()
    config = for_trainer(to_verl(plan), "sync")
    assert config.distillation.enabled is False
    assert config.distillation.teacher_models.teacher_model.model_path == str(models / "larger")
    assert identity(plan)["distillation"]["enabled"] is True
    assert OmegaConf.select(config, "actor_rollout_ref.actor.use_kl_loss") is False


@pytest.mark.parametrize(
    "path",
    [path for path in RECIPES if kind(path) == "agent_base"],
    ids=lambda path: f"{path.parent.name}/{path.stem}",
)
def test_every_recipe_accepts_a_teacher(path):
    skip_without_packages(path.parent.name)
    config = merged(path, DISTILL)
    with chdir(ROOT):
        check_keys(config, "agent_base")
        OmegaConf.resolve(config)
        plan = RunPlan.of(OmegaConf.to_container(config))
    check_conditions(plan.values, CONDITIONS)
    check_micro_batches(plan)
    assert plan.teacher is not None and not plan.teacher.adds_rewards
