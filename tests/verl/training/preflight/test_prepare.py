"""Test that settings that would fail later stop the run before it starts, with a message that names the key."""

import asyncio
import json
import re
from collections.abc import Callable
from contextlib import chdir, nullcontext
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from omegaconf import OmegaConf
from verl.workers.rollout.llm_server import LLMServerClient
from verl.workers.rollout.router import get_router_handle

from tests.support.composing import ROOT, recipe
from tests.support.models import CHATML, without_template, write_byte_model
from verl_agent.config.mixture import run_envs
from verl_agent.config.plan import RunPlan
from verl_agent.envs.registry import make_env
from verl_agent.envs.tasks import task_contents, task_ids
from verl_agent.errors import ConfigError
from verl_agent.models.checkpoints import finish_checkpoint
from verl_agent.models.resolve import SMOLLM2, parameters, prepare_smollm2, resolve_model
from verl_agent.runs.identity import SETTINGS_FILE, TASK_CONTENTS, TASK_IDS
from verl_agent.system.resources import RL_MEMORY_GB
from verl_agent.terminal import Console
from verl_agent.training.preflight.lengths import check_critic
from verl_agent.training.preflight.machine import check_machine, smallest_bucket_mb
from verl_agent.training.preflight.prompts import check_lengths, check_prompts
from verl_agent.training.preflight.rl import check_environment, check_plan, choose_dev_tasks
from verl_agent.training.run import ReinforcementLearning
from verl_agent.training.seats import check_comparison
from verl_agent.training.splits import split_tasks
from verl_agent.training.verl_config import ROUTER, to_verl

RECIPE = """
defaults:
  - agent_grpo
  - cpu
  - _self_
env:
  name: guess_number
  train_tasks: small_train
  eval_tasks: small_test
horizon:
  max_turns: [4]
episode:
  max_tokens_per_turn: 16
data:
  train_batch_size: 4
  max_prompt_length: 100
  max_response_length: 200
trainer:
  total_training_steps: 2
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Folder with a recipe, the files of a model without weights, and files of task ids."""
    folder = tmp_path_factory.mktemp("user")
    folder.joinpath("mine.yaml").write_text(RECIPE)
    folder.joinpath("model").mkdir()
    folder.joinpath("model/config.json").write_text(json.dumps({"model_type": "llama"}))
    folder.joinpath("model/model.safetensors").touch()
    folder.joinpath("empty").mkdir()
    folder.joinpath("ids.txt").write_text("5:1\n5:99\n")
    folder.joinpath("one.txt").write_text("5:1\n")
    folder.joinpath("held_out.txt").write_text("5:3\n")
    return folder


def prepared(folder: Path, *changes: str, report: Callable[[str], None] = lambda line: None):
    """Prepare the recipe after `key=value` changes; merging them is much quicker than composing."""
    config = recipe(folder / "mine.yaml")
    OmegaConf.set_struct(config, False)
    own = [f"trainer.default_local_dir={folder}/run", f"actor_rollout_ref.model.path={folder}/model"]
    config.merge_with_dotlist([*own, *changes])
    with chdir(folder):
        return check_plan(RunPlan.read(config), report)


TASKS = "train_tasks: small_train, eval_tasks: small_test"
CRITIC = "algorithm.adv_estimator=gae"
TWO_SEATS = [
    *("env.name=two_crafters", "env.options.seats=[self,self]"),
    *("env.train_tasks=easy_train", "env.eval_tasks=easy_test"),
]
BEST = ["trainer.test_best=true", "trainer.test_freq=1", "trainer.save_freq=1"]
BATCH_OF_3 = ["data.train_batch_size=3", "actor_rollout_ref.actor.ppo_mini_batch_size=3"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["env.name=gess_number"], "env.name='gess_number' is not registered. Did you mean 'guess_number'?"),
        (["env.train_tasks=smal_train"], "env.train_tasks='smal_train' is not allowed: GuessNumber has no split 'smal"),
        (["env.eval_tasks=tset"], "env.eval_tasks='tset' is not allowed: GuessNumber has no split 'tset'."),
        (["env.dev_tasks=tset"], "env.dev_tasks='tset' is not allowed: GuessNumber has no split 'tset'."),
        (["env.train_tasks=ids.txt"], "ids.txt: GuessNumber has no task '5:99'. Did you mean"),
        (["env.eval_tasks=small_train"], "env.train_tasks='small_train' and env.eval_tasks='small_train' share 51"),
        (
            ["env.dev_tasks=small_test"],
            "env.dev_tasks='small_test' and env.eval_tasks='small_test' share 17 tasks, such",
        ),
        (["env.dev_tasks=small_train"], "env.dev_tasks='small_train' and env.train_tasks='small_train' share 51"),
        (
            [*BEST, "env.dev_tasks=null"],
            "trainer.test_best=True has no effect: validation plays env.eval_tasks already.",
        ),
        (["env.options.colour=red"], "env.options.colour is not an option of 'guess_number'. Known: ranges, tolerant."),
        (
            [*TWO_SEATS, "actor_rollout_ref.rollout.n=4", "algorithm.filter_groups.enable=true"],
            "algorithm.filter_groups.enable=true is not allowed with 2 trained seats",
        ),
        (["agent.name=raect"], "agent.name='raect' is not registered. Did you mean 'react'?"),
        (["agent.context.keep=lsat"], "agent.context.keep='lsat' is not allowed. Allowed: all, last, summary."),
        (
            [
                f"env.mixture=[{{name: guess_number, label: a, {TASKS}}}, {{name: guess_number, label: b, "
                "train_tasks: small_test, eval_tasks: small_train}]"
            ],
            "env.train_tasks='small_train' and env.eval_tasks='sm",
        ),
        (["horizon.max_turns=[8,4]"], "horizon.max_turns must not shrink, got [8, 4]."),
        (["horizon.max_turns=???"], "the config lacks a value for horizon.max_turns."),
        (
            ["data.train_batch_size=52"],
            "env.train_tasks='small_train' has 41 tasks beside those that env.dev_tasks='au",
        ),
        (
            [*BATCH_OF_3, "actor_rollout_ref.rollout.n=3", "actor_rollout_ref.actor.use_kl_loss=false"],
            "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2 does not divide the 9 episodes of a mini-batch",
        ),
        (
            [*BATCH_OF_3, "actor_rollout_ref.rollout.n=4", "algorithm.rollout_correction.bypass_mode=false"],
            "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8 does not divide the 12 episodes of a mini",
        ),
        ([CRITIC, "critic.model.path=./nowhere"], "critic.model.path='./nowhere' does not exist."),
        (
            [CRITIC, "critic.model.path=model", "critic.ppo_micro_batch_size_per_gpu=7"],
            "critic.ppo_micro_batch_size_pe",
        ),
        (["data.train_max_samples=3"], "data.train_max_samples=3 leaves fewer tasks of 'guess_number' than the 4 that"),
        (
            ["env.mixture=[{name: guess_number, episode: {max_tokens: 201}}]"],
            "episode.max_tokens=201 is not allowed. A",
        ),
        (
            [
                "env.mixture=[{name: guess_number, train_tasks: one.txt, dev_tasks: null, eval_tasks: small_test}, "
                "{name: textcraft, train_tasks: easy_train, eval_tasks: easy_test}]"
            ],
            "env.train_tasks='one.txt' of 'guess_",
        ),
        (
            ["trainer.n_gpus_per_node=999"],
            "trainer.n_gpus_per_node=999 is not allowed with trainer.device='cpu'. Al",
        ),
        (["trainer.n_gpus_per_node=1.0"], "trainer.n_gpus_per_node=1.0 is not allowed with trainer.device='cpu'. Al"),
        (["actor_rollout_ref.model.path=./nowhere"], "actor_rollout_ref.model.path='./nowhere' does not exist."),
        (["actor_rollout_ref.model.path=empty"], "actor_rollout_ref.model.path='empty': "),
        (["data.max_response_length=${no.such.key}"], "the config does not resolve:"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_invalid_input_raises_config_error_with_one_message(folder, changes, message):
    """One case for each check of `check_plan`; the unit tests of each section have the others."""
    with pytest.raises(ConfigError) as error:
        prepared(folder, *changes)
    assert str(error.value).startswith(message)


def test_a_misspelt_key_in_a_recipe_raises_config_error(folder):
    folder.joinpath("typo.yaml").write_text("defaults:\n  - mine\n  - _self_\nenv:\n  timeout: 5\n")
    with pytest.raises(ConfigError, match=r"^env\.timeout is not a setting\. Did you mean 'timeout_s'\?"):
        RunPlan.read(recipe(folder / "typo.yaml"))


def test_validating_on_training_tasks_needs_env_overlap(folder):
    config = recipe(folder / "mine.yaml")
    config.env.eval_tasks = config.env.train_tasks
    for overlap in (False, True):
        config.env.overlap = overlap
        (run_env,) = run_envs(OmegaConf.to_container(config))
        with nullcontext() if overlap else pytest.raises(ConfigError, match="share 51 tasks"):
            check_environment(run_env, [run_env])


def test_estimators_with_groups_refuse_an_environment_that_ignores_seeds(folder):
    config = recipe(folder / "mine.yaml")
    hidden = {"name": "gymnasium", "train_tasks": "train", "eval_tasks": "test"}
    for allowed in (False, True):
        options = {"kwargs": {"map_name": None}, "allow_unseeded": allowed}
        config.env = {**config.env, **hidden, "options": options}
        (run_env,) = run_envs(OmegaConf.to_container(config))
        for estimator in ("grpo", "rloo", "gigpo"):
            with nullcontext() if allowed else pytest.raises(ConfigError, match=r"ignores seeds.*allow_unseeded=true"):
                check_comparison(estimator, 4, 1, run_env)
        check_comparison("reinforce_plus_plus", 4, 1, run_env)


def test_an_invalid_config_leaves_no_files_behind(folder):
    with pytest.raises(ConfigError):
        prepared(folder, "horizon.max_turns=[8,4]", f"trainer.default_local_dir={folder}/refused")
    assert not folder.joinpath("refused").exists()


def test_verls_client_sends_requests_through_the_router():
    router = get_router_handle({"host:1": "handle"}, str(ROUTER))
    client = LLMServerClient(OmegaConf.create({}), router)
    assert asyncio.run(client._acquire_server("request", prompt_ids=[1])) == ("host:1", "handle")
    client._release_server("host:1", "request")


@pytest.mark.parametrize(
    ("largest", "configured", "expected"),
    [(None, 2048, 2048), (1000, 2048, 128), (1000, 64, 64), (100 << 20, 2048, 400), ((100 << 20) + 1, 2048, 401)],
)
def test_a_bucket_of_weights_holds_the_largest_tensor_and_little_more(largest, configured, expected):
    assert smallest_bucket_mb(largest, configured) == expected


@pytest.mark.skipif(psutil.virtual_memory().available < RL_MEMORY_GB * 1e9, reason="the machine has too little memory")
def test_a_valid_config_is_resolved_and_completed(folder):
    model = "actor_rollout_ref.model"
    own = ["trainer.default_local_dir=run", f"{model}.path={SMOLLM2}", f"{model}.external_lib=json"]
    with chdir(folder):
        plan = prepared(folder, *own)
        config, envs = to_verl(plan), plan.envs
    assert OmegaConf.missing_keys(config) <= {
        key for key in OmegaConf.missing_keys(config) if key.startswith("reward.")
    }
    assert config.trainer.default_local_dir == str(folder / "run")  # workers have another working directory
    assert config.episode.record_dir == str(folder / "run/episodes")
    assert config.actor_rollout_ref.model.path == str(prepare_smollm2())
    assert Path(config.actor_rollout_ref.rollout.agent.agent_loop_config_path).is_file()
    assert config.actor_rollout_ref.rollout.router_config_path == str(ROUTER)
    assert config.actor_rollout_ref.model.external_lib == ["json", "verl_agent.training.policy_losses"]
    assert str(folder / "run/tensorboard") == config.ray_kwargs.ray_init.runtime_env.env_vars.TENSORBOARD_DIR
    assert [run_env.horizon.max_turns for run_env in envs] == [[4]]


@pytest.mark.skipif(psutil.virtual_memory().available < RL_MEMORY_GB * 1e9, reason="the machine has too little memory")
def test_resume_of_other_fsdp1_ranks_raises_config_error_before_ray_starts(folder, tmp_path):
    actor = tmp_path / "global_step_1" / "actor"
    actor.mkdir(parents=True)
    actor.joinpath("fsdp_config.json").write_text(json.dumps({"FSDP_version": 1, "world_size": 2}))
    finish_checkpoint(tmp_path / "global_step_1")
    tmp_path.joinpath(SETTINGS_FILE).write_text(json.dumps({"command": "train"}))
    config = recipe(folder / "mine.yaml", "actor_rollout_ref.model.path=" + SMOLLM2)
    config.trainer.default_local_dir = str(tmp_path)
    with pytest.raises(ConfigError, match=r"\(FSDP1\) .* was written by 2 ranks; .* gives 1\. Use 2 ranks again"):
        ReinforcementLearning(RunPlan.read(config)).run()


@pytest.mark.skipif(psutil.virtual_memory().available < RL_MEMORY_GB * 1e9, reason="the machine has too little memory")
def test_a_run_is_identified_by_the_contents_of_its_tasks(folder, tmp_path):
    config = recipe(folder / "mine.yaml", "actor_rollout_ref.model.path=" + SMOLLM2, "env.train_tasks=small_train")
    config.trainer.default_local_dir = str(tmp_path)
    run = ReinforcementLearning(RunPlan.read(config))
    run.shown = Console(quiet=True)
    run.check()
    tasks = make_env("guess_number").tasks("small_train")
    assert (run.settings[TASK_IDS], run.settings[TASK_CONTENTS]) == (task_ids(tasks), task_contents(tasks))


def test_a_critic_with_too_small_a_vocabulary_raises_config_error(tmp_path):
    """It would end the first step with an IndexError of its embedding."""
    policy = write_byte_model(tmp_path / "policy", ["Guess a whole number. Higher. Lower."], vocabulary=300)
    critic = write_byte_model(tmp_path / "critic", ["Guess"], vocabulary=270)
    check_critic(str(policy), str(policy))
    with pytest.raises(ConfigError, match=r"^critic\.model\.path='.*critic' has \d+ tokens, and the tokenizer of the"):
        check_critic(str(critic), str(policy))


# Machine and model


def test_the_check_of_the_memory_can_be_overridden(monkeypatch):
    monkeypatch.setenv("VERL_PLATFORM", "nvidia")
    config = recipe(ROOT / "recipes/textcraft/grpo.yaml", "+overlay/size=multinode", "+overlay/model=qwen3_14b")
    plan, lines = RunPlan.read(config), []
    assert parameters(plan.actor.path) is None, "its weights are not on this machine"
    with pytest.raises(ConfigError, match="keeping weights and optimizer in it"):
        check_machine(plan, print)
    check_machine(replace(plan, layout=replace(plan.layout, check_memory=False)), lines.append)
    assert "The run starts anyway (trainer.check_memory=false)" in lines[0]


# Prompts


def check(folder: Path, *changes: str) -> list[str]:
    """Return the lines that the check of prompts reports, with SmolLM2's tokenizer; its checks of memory do not run."""
    lines: list[str] = []
    config = recipe(folder / "mine.yaml")
    OmegaConf.set_struct(config, False)
    config.merge_with_dotlist([f"actor_rollout_ref.model.path={prepare_smollm2()}", *changes])
    plan = RunPlan.read(config)
    check_prompts(plan, plan.envs[0], lines.append)
    return lines


def test_the_check_of_prompts_says_how_many_tasks_it_covers(folder):
    (line,) = check(folder)
    covered = "(68 of 68 tasks checked|64 of 68 tasks checked in 5 s, 4 not checked)"  # the latter on a slow machine
    assert re.fullmatch(rf"prompts of guess_number: {covered}; the longest has \d\d of 100 tokens", line)


def test_a_few_overlong_prompts_are_reported_and_do_not_stop_the_run(folder):
    lengths = [int(re.search(r"longest has (\d+)", check(folder)[0])[1])]
    (line,) = check(folder, f"data.max_prompt_length={lengths[0] - 1}", "env.max_env_error_rate=1")
    assert re.search(rf"of {lengths[0] - 1} tokens; \d+ exceed them and are not played \(data.overlong_prompt\)$", line)


def test_more_overlong_prompts_than_the_limit_raise_config_error_naming_a_task(folder):
    with pytest.raises(
        ConfigError, match=r"^68 of 68 checked tasks have a prompt of more than data.max_prompt_length=20"
    ):
        check(folder, "data.max_prompt_length=20")


def test_rules_that_are_too_long_raise_config_error_although_observations_are_cut(folder):
    cutting = "data.overlong_prompt=truncate_observation"
    with pytest.raises(ConfigError, match=r"tokens without its observation, more than data\.max_prompt_length=20\."):
        check(folder, "data.max_prompt_length=20", cutting)


def test_options_that_the_chat_template_does_not_read_are_refused(folder):
    with pytest.raises(ConfigError, match=r"^data\.apply_chat_template_kwargs\.enable_thinking has no effect"):
        check(folder, "data.apply_chat_template_kwargs.enable_thinking=false")


def test_the_chat_template_of_the_recipe_takes_the_place_of_a_missing_one(folder, tmp_path):
    model = without_template(write_byte_model(tmp_path / "model", ["Guess a whole number."], vocabulary=300))
    own = f"actor_rollout_ref.model.path={model}"
    with pytest.raises(ConfigError, match=r"Set actor_rollout_ref\.model\.custom_chat_template"):
        check(folder, own)
    setting = f"actor_rollout_ref.model.custom_chat_template={json.dumps(CHATML)}"
    lengths = ["data.max_prompt_length=600", "env.max_env_error_rate=1"]
    assert "the longest has" in check(folder, own, setting, *lengths)[-1]
    with pytest.raises(ConfigError, match=r"^data\.apply_chat_template_kwargs\.thinking has no effect"):
        check(folder, own, setting, "data.apply_chat_template_kwargs.thinking=false")


def test_the_check_of_lengths_leaves_a_missing_chat_template_to_that_of_prompts(folder, tmp_path):
    model = without_template(write_byte_model(tmp_path / "model", ["Guess a whole number."], vocabulary=300))
    plan = RunPlan.read(recipe(folder / "mine.yaml", f"actor_rollout_ref.model.path={model}"))
    check_lengths(plan, print)


def test_a_hub_id_is_not_resolved_to_a_path():
    assert resolve_model("Qwen/Qwen2.5-3B-Instruct") == "Qwen/Qwen2.5-3B-Instruct"


@pytest.mark.parametrize(
    ("trainer", "began", "chosen"),
    [
        ({"test_freq": 1}, None, "auto"),
        ({"test_freq": 2}, None, None),
        ({"test_freq": -1}, None, None),
        ({"test_freq": 1}, {"eval_tasks": "small_test"}, None),
        ({"test_freq": 1}, {"dev_tasks": None}, None),
        ({"test_freq": 2}, {"dev_tasks": None}, None),
        ({"test_freq": -1}, {"dev_tasks": "auto"}, "auto"),
    ],
    ids=["chooses", "one validation", "no validation", "older version", "began without", "still one", "began with"],
)
def test_tasks_are_held_out_if_a_checkpoint_is_chosen_and_as_the_run_began(folder, trainer, began, chosen):
    config = recipe(folder / "mine.yaml")
    OmegaConf.set_struct(config, False)
    config.trainer.merge_with(trainer)
    lines: list[str] = []
    plan = choose_dev_tasks(RunPlan.read(config), {} if began is None else {"env": began}, lines.append)
    assert plan.value("env.dev_tasks") == chosen
    assert bool(lines) is (began is not None and chosen is None and trainer["test_freq"] == 1)
    (splits,) = split_tasks(plan.envs)
    assert len(splits.train) == (51 if chosen is None else 41)
