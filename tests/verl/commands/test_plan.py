"""Test the plan of a run: limits from the oracle, batch sizes from the memory of a GPU, and what cannot be planned."""

from collections.abc import Sequence
from contextlib import chdir
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from tests import ROOT
from tests.support.models import write_byte_model, write_byte_tokenizer
from verl_agent.commands.cli import app
from verl_agent.commands.new_env import write_package
from verl_agent.commands.plan import find_refusal, first_fit
from verl_agent.config.composing import compose_training
from verl_agent.config.plan import RunPlan
from verl_agent.errors import ConfigError
from verl_agent.training.preflight.estimates import estimate_footprint, shape_of
from verl_agent.training.preflight.oracle_lengths import OracleLengths
from verl_agent.training.preflight.planning import USABLE, fit_on_gpus, reply_limits, suggest_limits

RECIPE = ROOT / "recipes/guess_number/grpo.yaml"
CPU = RECIPE.with_name("grpo_cpu.yaml")
TEACHER = "distillation.teacher_models.teacher_model.model_path"
DISTILLED = (str(CPU), "+overlay/algorithm=distill", "--tasks", "5")
SMALL = "Qwen/Qwen2.5-1.5B-Instruct"


def planned(*arguments: str, status: int = 0) -> str:
    done = CliRunner().invoke(app, ["plan", *arguments])
    assert done.exit_code == status, done.output
    return done.output


def plan_of(path: Path, overrides: Sequence[str]) -> RunPlan:
    return RunPlan.of(compose_training(path, overrides))


def test_a_plan_ends_with_the_command_that_fits(tmp_path: Path) -> None:
    *_, command = planned(str(RECIPE), "--gpu", "24gb", "--tasks", "20").strip().splitlines()
    words = [word.strip("'") for word in command.split()]
    assert words[:3] == ["verl-agent", "train", str(RECIPE)]
    assert "horizon.max_turns=[11]" in words  # 1.5 times the seven turns of a binary search
    plan = plan_of(RECIPE, words[3:])
    shape = shape_of(plan.actor.path)
    assert shape is not None and estimate_footprint(plan, shape, None, 24.0).peak_gb <= 24


def test_a_line_is_shown_before_the_recipe_is_composed() -> None:
    assert planned(str(RECIPE), "data.seeed=1", status=2).startswith(f"reading {RECIPE} ...")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([str(RECIPE), "--gpu", "big"], "--gpu='big' is not allowed. Allowed: the memory of one GPU from 4gb on"),
        ([str(CPU), "--gpus", "2"], "is for a CPU: --gpu and --gpus have no effect. Leave them out."),
        ([str(ROOT / "recipes/textcraft/mixture.yaml")], "has env.mixture, which has no common limits."),
        ([str(RECIPE), "data.seeed=1"], "data.seeed is not a setting of this recipe. Did you mean 'seed'?"),
        ([str(RECIPE), "horizon.grow_by=4", "horizon.up_to=24"], "horizon.grow_by of "),
        ([str(RECIPE), "horizon.max_turns=[4,8]", "horizon.order=random"], "horizon.order of "),
        ([str(RECIPE), "horizon.max_turns=[4,8]", "horizon.deepen=true"], "horizon.deepen of "),
        (
            [str(RECIPE), "horizon.max_turns=[4,8]", "horizon.per_task={rule: signal}"],
            "horizon.per_task of ",
        ),
        ([str(RECIPE.parent)], "is a folder. Choose one of its recipes"),
    ],
)
def test_what_cannot_be_planned_is_named(arguments: list[str], message: str) -> None:
    assert message in " ".join(planned(*arguments, status=2).split())


def test_a_recipe_for_a_cpu_is_planned_with_the_lengths_of_its_own_tokenizer() -> None:
    output = planned(str(CPU), "--tasks", "20")
    *_, command = output.strip().splitlines()
    assert "no advice" not in output and "stands" not in output
    config = compose_training(CPU, [word.strip("'") for word in command.split()[3:]])
    assert config["horizon"]["max_turns"] == [6]  # 1.5 times the four turns of a binary search up to 15
    assert "GB of memory; a step of episodes of" in output


def test_a_teacher_that_is_missing_is_named() -> None:
    output = " ".join(planned(*DISTILLED, f"{TEACHER}=openai:gpt-4o-mini").split())
    assert f"The run does not start here: {TEACHER}='openai:gpt-4o-mini' does not exist" in output
    assert "play its episodes with `verl-agent eval`" in output


def test_the_overlay_asks_for_a_teacher_and_names_the_guide(tmp_path: Path) -> None:
    with chdir(tmp_path):
        output = find_refusal(CPU, [DISTILLED[1]], has_models=True)
    assert output.startswith(f"{TEACHER}='runs/teacher' does not exist: it is the value of the overlay")
    assert "It must name a teacher" in output and "docs/guides/distillation.md has an example" in output
    assert "the first lines of the recipe" not in output


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a policy, and of a teacher that suits it and others that do not."""
    folder, texts = tmp_path_factory.mktemp("models"), ["Guess a whole number from 1 to 12. Higher. Lower."]
    for name in ("policy", "suitable", "untold"):
        write_byte_model(folder / name, texts, 300)
    write_byte_model(folder / "other", ["xyz " * 9], 262)
    write_byte_model(folder / "short", texts, 300, max_position_embeddings=64)
    for file in (folder / "untold").glob("*token*"):
        file.unlink()
    tokenizer = write_byte_tokenizer(folder / "wide", texts, 300)
    wide = AutoModelForCausalLM.from_pretrained(folder / "policy")
    wide.resize_token_embeddings(len(tokenizer) + 64)
    wide.save_pretrained(folder / "wide")
    return folder


def refusal(models: Path, teacher: str, *overrides: str, policy: str = "policy") -> str:
    paths = [f"{TEACHER}={models / teacher}", f"actor_rollout_ref.model.path={models / policy}"]
    lengths = ["data.max_prompt_length=512", "data.max_response_length=256"]
    return find_refusal(CPU, [DISTILLED[1], *paths, *lengths, *overrides], has_models=True)


@pytest.mark.parametrize(
    ("teacher", "overrides", "message"),
    [
        ("other", [], "has another tokenizer than the policy"),
        ("short", [], "supports at most 64"),
        ("untold", [], "untold' does not load: Couldn't instantiate the backend tokenizer"),
        ("policy", [], "Allowed: another model than the policy"),
        ("suitable", ["actor_rollout_ref.actor.use_kl_loss=true"], "actor_rollout_ref.actor.use_kl_loss=true is not"),
        (
            "suitable",
            ["distillation.distillation_loss.loss_mode=forward_kl_topk"],
            "distillation.distillation_loss.loss_mode='forward_kl_topk' is not allowed",
        ),
        ("suitable", ["trainer.logger=[console]"], "lacks 'file'"),
        ("suitable", ["trainer.resume_mode=sometimes"], "trainer.resume_mode='sometimes' is not allowed"),
        ("suitable", ["actor_rollout_ref.rollout.top_k=20"], "actor_rollout_ref.rollout.top_k=20 is not allowed"),
        ("suitable", ["data.train_batch_size=400"], "fewer than data.train_batch_size=400"),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, list) else value[:9],
)
def test_what_train_refuses_is_refused(models: Path, teacher: str, overrides: list[str], message: str) -> None:
    assert message in refusal(models, teacher, *overrides)


def test_a_teacher_with_fewer_token_ids_is_refused(models: Path) -> None:
    assert "it cannot read all of them" in refusal(models, "policy", policy="wide")


def test_a_run_that_starts_is_not_refused(models: Path) -> None:
    assert refusal(models, "suitable") == ""


def test_a_refusal_stands_before_the_command(models: Path) -> None:
    paths = [f"{TEACHER}={models / 'other'}", f"actor_rollout_ref.model.path={models / 'policy'}"]
    *_, line, command = planned(*DISTILLED, *paths).strip().splitlines()
    assert line.startswith(f"The run does not start here: {TEACHER}='{models}/other' has another tokenizer")
    assert command.startswith(f"verl-agent train {CPU}")


def test_lengths_of_another_tokenizer_are_no_advice_for_the_model(tmp_path: Path) -> None:
    output = " ".join(planned(str(CPU), "--tasks", "5", f"actor_rollout_ref.model.path={tmp_path}/absent").split())
    assert f"the tokenizer of {tmp_path}/absent is not on this machine: smollm2-135m counts instead" in output
    assert f"The lengths are no advice for {tmp_path}/absent" in output
    assert "the longest prompt in tokens of smollm2-135m, not of" in output
    assert "memory and time are not estimated" in output


def test_an_episode_beyond_the_context_is_named_before_the_memory() -> None:
    """The model of 7B needs more than 24 GB in any case."""
    shape = shape_of("Qwen/Qwen2.5-7B-Instruct")
    assert shape is not None
    oracle = OracleLengths([600], [64], [64], [64])
    config = plan_of(RECIPE, [])
    with pytest.raises(ConfigError, match="supports at most 32768"):
        first_fit(config, 128, oracle, (shape, None), 24.0)


def test_memory_is_saved_only_where_it_has_to_be() -> None:
    """A 1.5B model with its whole optimizer needs more than 24 GB, and less than 80 GB."""
    config = plan_of(RECIPE, [f"actor_rollout_ref.model.path={SMALL}", "offload=false"])
    shape = shape_of(SMALL)
    assert shape is not None
    small, large = fit_on_gpus(config, shape, None, 24.0), fit_on_gpus(config, shape, None, 80.0)
    assert list(small.overrides) == ["offload=true", "+overlay/lora=rank_32"]
    assert list(large.overrides) == []
    assert small.needed.peak_gb <= USABLE * 24 and large.needed.peak_gb <= USABLE * 80


def test_a_model_that_does_not_fit_is_refused_with_remedies() -> None:

    shape = shape_of("Qwen/Qwen2.5-7B-Instruct")
    assert shape is not None
    with pytest.raises(ConfigError, match=r"a GPU of 24 GB, also with .*the run needs \d+ GB.*Choose a smaller model"):
        fit_on_gpus(plan_of(RECIPE, []), shape, None, 24.0)


def test_limits_follow_from_the_oracle_and_stay_without_one() -> None:
    config = plan_of(RECIPE, ["horizon.max_turns=[4,8,30]", "horizon.steps_per_stage=5"])
    oracle = OracleLengths([4, 8], [20, 20], [30], [40])
    limits = {one.key: one.value for one in suggest_limits(config, 128, oracle, 64)}
    assert limits["horizon.max_turns"] == [4, 8, 12]
    assert limits["data.max_response_length"] == 1280  # 12 turns of 64 + 30 tokens, rounded up to 256
    assert [one.key for one in suggest_limits(config, 128, None, 64)] == ["data.max_prompt_length"]
    assert (reply_limits(512, oracle), reply_limits(32, oracle)) == ([512, 256, 128], [48])


def test_the_recipes_for_24_gb_fit(tmp_path: Path) -> None:
    package = write_package("lamps", tmp_path)
    for recipe, *overrides in ([package / "recipes/grpo_24gb.yaml"], [RECIPE, "+overlay/size=1gpu_24gb"]):
        config = plan_of(Path(recipe), [str(one) for one in overrides])
        shape = shape_of(config.actor.path)
        assert config.actor.path == SMALL and shape is not None
        needed = estimate_footprint(config, shape, None, 24.0)
        assert needed.peak_gb <= USABLE * 24 and needed.episodes >= 8
