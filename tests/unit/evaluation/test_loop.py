"""Test the loop of an evaluation, resuming, the checks of its settings, and the warning about training settings."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import pytest
from omegaconf import DictConfig
from rich.console import Console

from tests.support.evaluated_games import recipe
from tests.support.fakes import ScriptedPolicy, plain, talk_class
from verl_agent.errors import ConfigError, EnvError, EnvErrorLimitError, OverlongPromptError
from verl_agent.evaluation import sglang_engine
from verl_agent.evaluation.job import check_engine_device, first_tasks, prepare_evaluation
from verl_agent.evaluation.loop import (
    MAX_INITIAL_ERRORS,
    EvaluationSetup,
    episode_seed,
    error_share,
    pending_episodes,
    play_all,
)
from verl_agent.evaluation.settings import EngineSettings, EvaluationSettings
from verl_agent.evaluation.training_differences import TrainingDifference, differences_table
from verl_agent.evaluation.vllm_engine import Route, most_likely, vllm_options
from verl_agent.platform.detect import use_cpu_device
from verl_agent.results.folder import model_name
from verl_agent.rollout.episode import EpisodeLimits
from verl_agent.rollout.player import Player
from verl_agent.rollout.seeds import EpisodeSeed
from verl_agent.trace.record import EpisodeRecord
from verl_agent.trace.record_files import EpisodeWriter, read_records
from verl_agent.types import Episode, Message, Reply, StopReason, TaskItem

TASKS = [TaskItem("talk", name) for name in "abcd"]


class TalkEvaluation:
    """Small evaluation of `Talk` with scripted replies; keeps the reported episodes and the seeds."""

    def __init__(self, folder: Path, fault: str = "", allowed: float = 1.0, concurrency: int = 2) -> None:
        self.path, self.talk = folder / "episodes.jsonl", talk_class()
        self.reported: list[Episode] = []
        self.seeds: list[EpisodeSeed] = []
        self.setup = EvaluationSetup(
            Player(
                plain,
                lambda: self.talk(turns=2, fault=fault),
                self._policy,
                EpisodeLimits(max_turns=3, timeout_s=1.0, retries=1),
            ),
            tasks="test",
            model="models/x",
            concurrency=concurrency,
            max_env_error_rate=allowed,
        )

    def play(self, items: Sequence[TaskItem] = TASKS, samples: int = 1) -> list[EpisodeRecord]:
        """Play the pending episodes and return all records."""
        earlier = list(read_records(self.path)) if self.path.exists() else []
        with EpisodeWriter(self.path) as writer:
            asyncio.run(play_all(pending_episodes(items, samples, earlier), self.setup, writer, self.reported.append))
        return list(read_records(self.path))

    def play_with(self, **changes: object) -> None:
        """Change fields of the player."""
        self.setup = replace(self.setup, player=replace(self.setup.player, **changes))

    def _policy(self, item: TaskItem, seed: EpisodeSeed) -> ScriptedPolicy:
        self.seeds.append(seed)
        return ScriptedPolicy(["one", "two"])


def test_every_task_is_played_and_recorded(tmp_path):
    records = TalkEvaluation(tmp_path).play(samples=2)
    assert sorted((record["task"], record["sample"]) for record in records) == [(t, s) for t in "abcd" for s in (0, 1)]
    assert {(record["purpose"], record["split"], record["model"]) for record in records} == {
        ("evaluation", "test", "models/x")
    }
    assert all(record["success"] for record in records)


def test_a_second_start_plays_only_pending_episodes(tmp_path):
    first = TalkEvaluation(tmp_path)
    first.play(TASKS[:2])
    second = TalkEvaluation(tmp_path)
    records = second.play(TASKS[:3])
    assert [episode.item.id for episode in second.reported] == ["c"]
    assert len(records) == 3
    third = TalkEvaluation(tmp_path)
    assert third.play(TASKS[:3]) == records
    assert third.seeds == []


def test_tasks_are_limited_by_category_before_their_total():
    items = [TaskItem("talk", name, category=name[0]) for name in ("a1", "a2", "b1", "a3", "b2", "c1")]

    def kept(**limits: int) -> list[str]:
        return [item.id for item in first_tasks(items, EvaluationSettings(**limits))]

    assert kept(max_tasks_per_category=1) == ["a1", "b1", "c1"]
    assert kept(max_tasks_per_category=2, max_tasks=4) == ["a1", "a2", "b1", "b2"]
    assert kept(max_tasks=2) == ["a1", "a2"] and len(kept()) == 6


def test_the_seed_of_an_episode_is_independent_of_other_episodes(tmp_path):
    alone = TalkEvaluation(tmp_path)
    alone.play([TASKS[2]])
    assert alone.seeds == [episode_seed(alone.setup, TASKS[2], sample=0)]


def test_a_retry_has_another_seed_than_the_attempt_that_failed(tmp_path):
    evaluation = TalkEvaluation(tmp_path, fault="raise")
    evaluation.talk.deterministic = False
    evaluation.play(TASKS[:1])
    assert len({seed.at(0) for seed in evaluation.seeds}) == len(evaluation.seeds) == 2


def test_an_overlong_prompt_is_recorded_and_not_played_again_by_a_second_start(tmp_path):
    evaluation = TalkEvaluation(tmp_path)
    evaluation.play_with(new_policy=lambda item, seed: ScriptedPolicy([OverlongPromptError("long")]))
    (record,) = evaluation.play(TASKS[:1])
    assert (record["stop"], record["error"], record["turns"]) == ("overlong_prompt", "long", [])
    assert evaluation.play(TASKS[:1]) == [record]


def test_every_attempt_is_recorded_and_the_last_one_reported(tmp_path):
    evaluation = TalkEvaluation(tmp_path, fault="raise")
    evaluation.talk.deterministic = False
    records = evaluation.play(TASKS[:1])
    assert [(record["attempt"], record["stop"]) for record in records] == [(1, "env_error"), (2, "env_error")]
    assert [episode.stop for episode in evaluation.reported] == [StopReason.ENV_ERROR]


def test_too_many_env_errors_stop_the_evaluation_and_keep_its_records(tmp_path):
    with pytest.raises(
        EnvErrorLimitError, match=r"2 of 2 episodes have errors, of 4 planned; env\.max_env_error_rate=0\.25"
    ):
        TalkEvaluation(tmp_path, fault="raise", allowed=0.25, concurrency=1).play()
    assert len({record["task"] for record in read_records(tmp_path / "episodes.jsonl")}) == 2


def test_initial_env_errors_stop_the_evaluation_early(tmp_path):
    evaluation = TalkEvaluation(tmp_path, fault="raise", allowed=0.9, concurrency=1)
    with pytest.raises(EnvErrorLimitError):
        evaluation.play(samples=100)
    assert len(evaluation.reported) == MAX_INITIAL_ERRORS


def test_concurrency_limits_the_episodes_played_at_once(tmp_path):
    evaluation = TalkEvaluation(tmp_path, concurrency=3)
    running: list[int] = []

    class Slow(ScriptedPolicy):
        async def reply(self, messages: Sequence[Message]) -> Reply:
            running.append(sum(not env.closed for env in evaluation.talk.made))
            await asyncio.sleep(0)
            return await super().reply(messages)

    evaluation.play_with(new_policy=lambda item, seed: Slow(["one", "two"]))
    evaluation.play(samples=3)
    assert max(running) == 3


def test_an_error_of_the_policy_ends_the_evaluation(tmp_path):
    evaluation = TalkEvaluation(tmp_path)
    evaluation.play_with(new_policy=lambda item, seed: ScriptedPolicy([RuntimeError("engine")]))
    with pytest.raises(RuntimeError, match="engine"):
        evaluation.play()
    assert all(env.closed for env in evaluation.talk.made)


def test_the_engine_returns_log_probs_only_on_request():
    samplings = ({}, {"logprobs": False}, {"logprobs": True}, {"logprobs": 5})
    assert [vllm_options(sampling)["logprobs"] for sampling in samplings] == [None, None, 0, 5]


def test_sglang_gets_its_own_names_of_limits_seeds_and_log_probs():
    options = sglang_engine.sglang_options({"temperature": 0.5, "max_tokens": 9, "seed": 3, "logprobs": 2})
    sampling = {"temperature": 0.5, "max_new_tokens": 9, "sampling_seed": 3}
    assert options == {"sampling_params": sampling, "return_logprob": True, "top_logprobs_num": 2}


def test_a_reply_of_sglang_without_tokens_has_no_log_probs():
    """SGLang returns a log-prob of a token that it does not return where the context is full."""
    meta = {"finish_reason": {"type": "length"}, "output_token_logprobs": [(-1.0, 5, None)]}
    options = sglang_engine.sglang_options({"max_tokens": 1, "logprobs": True})
    found = sglang_engine.generation({"output_ids": [], "meta_info": meta}, options)
    assert (found.token_ids, found.log_probs, found.stop_reason) == ([], [], "length")


def test_alternatives_are_the_most_likely_tokens_without_the_sampled_one():
    by_id = {7: SimpleNamespace(logprob=-3.0), 1: SimpleNamespace(logprob=-0.5), 2: SimpleNamespace(logprob=-1.0)}
    assert most_likely(by_id, 2) == [(1, -0.5), (2, -1.0)]


def test_alternatives_need_a_model_of_this_machine(tmp_path):
    config = composed(tmp_path, logprobs=5)
    config.model.path = "oracle"
    with pytest.raises(ConfigError, match=r"evaluation\.logprobs=5 needs a model that this machine plays"):
        prepare_evaluation(config)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("/x/runs/grpo/global_step_25/actor/huggingface", "grpo_step25"),
        ("/x/runs/sft/global_step_4/huggingface", "sft_step4"),
        ("/cache/models/smollm2-135m", "smollm2-135m"),
        ("Qwen/Qwen2.5-3B-Instruct", "Qwen2.5-3B-Instruct"),
        ("python:my_package.policies:greedy", "greedy"),
        ("runs/a/best", "a_best"),
        ("/x/runs/b/best/actor/huggingface", "b_best"),
        ("../best", "best"),
        ("/x/export/huggingface", "export"),
        ("openai:gpt-4o-mini", "gpt-4o-mini"),
        ("openai:llama3.1:8b", "llama3.1-8b"),
        ("qwen3:8b", "qwen3-8b"),
        ("anthropic:org/model:free", "model-free"),
    ],
)
def test_a_model_has_a_short_name_for_folders(model, name):
    assert model_name(model) == name


def composed(folder: Path, **evaluation) -> DictConfig:
    """Return a recipe as Hydra composes it, with a model that has a context of 128 tokens."""
    model = folder / "model"
    model.mkdir(exist_ok=True)
    (model / "config.json").write_text(json.dumps({"model_type": "llama", "max_position_embeddings": 128}))
    (model / "model.safetensors").touch()
    config = recipe(folder / "out", str(model), **{"tasks": "test", **evaluation})
    config.agent, config.engine.device = {}, "cpu" if use_cpu_device() else "cuda"
    return config


def test_an_evaluation_plans_every_sample_of_the_tasks(tmp_path):
    evaluation = prepare_evaluation(composed(tmp_path, samples=3, max_tasks=2))
    assert (len(evaluation.pending), evaluation.planned, evaluation.model) == (6, 6, str(tmp_path / "model"))


def test_more_samples_are_allowed_in_the_same_folder(tmp_path):
    prepare_evaluation(composed(tmp_path, samples=1))
    assert prepare_evaluation(composed(tmp_path, samples=2, concurrency=1)).folder == tmp_path / "out"


def test_another_evaluation_in_the_same_folder_raises_config_error(tmp_path):
    prepare_evaluation(composed(tmp_path, temperature=1.0))
    (tmp_path / "out" / "episodes.jsonl").write_text("{}\n")
    with pytest.raises(ConfigError, match=r"holds another evaluation: evaluation\.temperature was 1\.0, is now 0\.5"):
        prepare_evaluation(composed(tmp_path, temperature=0.5))


def test_tasks_that_changed_under_the_same_ids_are_refused(tmp_path):
    config = composed(tmp_path, samples=1, max_tasks=1)
    (item,) = prepare_evaluation(config).items
    played = ended(tmp_path / "b", {item.id: "terminated"})[0]
    file = tmp_path / "out" / "episodes.jsonl"
    file.write_text(json.dumps({**played, "data": {**item.data, "seat": "a", "more": [1]}}) + "\n")
    assert len(prepare_evaluation(config).earlier) == 1
    file.write_text(json.dumps({**played, "data": {**item.data, "target": 0}}) + "\n")
    with pytest.raises(
        ConfigError, match=rf"holds episodes of task {item.id!r} with other data than it has now\. Choose"
    ):
        prepare_evaluation(config)


def test_other_weights_at_the_same_path_are_another_evaluation_and_a_folder_without_them_resumes(tmp_path):
    config = composed(tmp_path)
    prepare_evaluation(config)
    (tmp_path / "out" / "episodes.jsonl").write_text(json.dumps(ended(tmp_path / "b", {"a": "terminated"})[0]) + "\n")
    prepare_evaluation(config)
    (tmp_path / "model" / "model.safetensors").write_text("trained further")
    with pytest.raises(
        ConfigError, match=r"holds another evaluation: weights was \[\['model\.safetensors', 0, \d+\]\]"
    ):
        prepare_evaluation(config)
    settings = tmp_path / "out" / "settings.json"
    settings.write_text(
        json.dumps({key: one for key, one in json.loads(settings.read_text()).items() if key != "weights"})
    )
    prepare_evaluation(config)


def test_an_output_folder_that_is_a_file_raises_config_error(tmp_path):
    (tmp_path / "out").touch()
    with pytest.raises(
        ConfigError, match=r"^evaluation\.output_dir='.*out' is not allowed: there is a file of this name"
    ):
        prepare_evaluation(composed(tmp_path))


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("samples", 0, "evaluation.samples=0 is not allowed. Allowed: a whole number >= 1"),
        ("temperature", -1, "evaluation.temperature=-1 is not allowed. Allowed: a number >= 0"),
        ("top_p", 0, "evaluation.top_p=0 is not allowed. Allowed: a number above 0 and at most 1"),
        ("purpose", "train", "evaluation.purpose='train' is not allowed. Allowed: evaluation, collection"),
        ("sample", 2, "Did you mean 'samples'"),
        ("tasks", "tset", "^evaluation.tasks='tset' is not allowed: GuessNumber has no split 'tset'. Did you mean"),
        ("compare_with", "runs/never_was", "evaluation.compare_with='runs/never_was' is not the folder"),
        ("output_dir", "???", "lacks a value for evaluation.output_dir"),
    ],
)
def test_invalid_settings_raise_config_error_before_a_folder_is_made(tmp_path, setting, value, message):
    with pytest.raises(ConfigError, match=message):
        prepare_evaluation(composed(tmp_path, **{setting: value}))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("perturb", [{"rename": True}, {"observation_noise": 0.1}])
def test_approval_policy_is_refused_where_it_would_read_changed_words(tmp_path, perturb):
    policy = tmp_path / "policy.yaml"
    policy.write_text("rules: [{actions: ['*'], decision: approve}]")
    with pytest.raises(ConfigError, match=r"the rules would read changed words"):
        prepare_evaluation(composed(tmp_path, approve=str(policy), perturb=perturb))
    assert prepare_evaluation(composed(tmp_path, approve=str(policy), perturb={"fault_rate": 0.1})).rules


@pytest.mark.parametrize(
    ("section", "key", "value", "message"),
    [
        ("engine", "device", "gpu", r"engine\.device='gpu' is not allowed\. Allowed: cuda, cpu\."),
        (
            "data",
            "max_response_length",
            65,
            r"allow episodes of up to 129 tokens, but model\.path='.*' supports at most 128",
        ),
    ],
)
def test_unsupported_devices_and_lengths_raise_config_error(tmp_path, section, key, value, message):
    config = composed(tmp_path)
    config[section][key] = value
    with pytest.raises(ConfigError, match=message):
        prepare_evaluation(config)
    assert not (tmp_path / "out").exists()


def test_a_recipe_for_other_hardware_raises_config_error_with_a_remedy():
    here, elsewhere = ("cpu", "cuda") if use_cpu_device() else ("cuda", "cpu")
    check_engine_device(here)
    with pytest.raises(ConfigError, match=rf"^engine\.device='{elsewhere}': .* engine\.device={here}"):
        check_engine_device(elsewhere)


def test_several_samples_at_temperature_0_raise_config_error(tmp_path):
    with pytest.raises(ConfigError, match="would play the same episode again"):
        prepare_evaluation(composed(tmp_path, samples=2, temperature=0))


def trained_run(folder: Path, **changes) -> Path:
    """Return the checkpoint of a run that was trained with the settings of `composed`, except for `changes`."""
    model = folder / "run" / "global_step_5" / "huggingface"
    model.mkdir(parents=True)
    (model / "config.json").write_text(json.dumps({"model_type": "llama", "max_position_embeddings": 128}))
    (model / "model.safetensors").touch()
    settings = {
        "version": 2,
        "env": {"name": "guess_number", "options": {}},
        "agent": {"name": "react", "options": {}, "context": {"keep": "all"}},
        "horizon": {"max_turns": [2, 3], "eval_max_turns": None},
        "episode": {"max_tokens_per_turn": 8},
        "data": {"max_prompt_length": 64, "max_response_length": 64},
    }
    (folder / "run" / "run.json").write_text(json.dumps(settings | changes))
    return folder / "run"


@pytest.mark.parametrize("horizon", [{"max_turns": [2, 3]}, {"max_turns": [1], "grow_by": 1, "up_to": 3}])
def test_an_evaluation_with_the_settings_of_training_has_no_differences(tmp_path, horizon):
    config = composed(tmp_path)
    config.model.path = str(trained_run(tmp_path, horizon=horizon))
    evaluation = prepare_evaluation(config)
    assert evaluation.training_run == tmp_path / "run"
    assert evaluation.training_differences == []


def test_settings_that_differ_from_training_are_reported_with_both_values(tmp_path):
    agent = {"name": "act", "options": {"instructions": False}, "context": {"keep": "all"}}
    config = composed(tmp_path)
    config.model.path = str(trained_run(tmp_path, agent=agent, horizon={"max_turns": [2, 4]}))
    evaluation = prepare_evaluation(config)
    assert evaluation.training_differences == [
        TrainingDifference("agent.name", "act", "react"),
        TrainingDifference("agent.options.instructions", False, None),
        TrainingDifference("horizon.eval_max_turns", 4, 3),
    ]
    console = Console(file=StringIO(), width=120)
    console.print(differences_table(evaluation.training_differences, tmp_path / "run"))
    shown = console.file.getvalue()
    assert "trained with other settings" in shown
    assert ["agent.name", "'act'", "'react'"] in [line.split() for line in shown.splitlines()]


def test_options_of_another_environment_are_not_compared(tmp_path):
    config = composed(tmp_path)
    config.model.path = str(trained_run(tmp_path, env={"name": "textcraft", "options": {"depth": 2}}))
    differences = prepare_evaluation(config).training_differences
    assert differences == [TrainingDifference("env.name", "textcraft", "guess_number")]


def test_a_model_outside_a_run_has_no_training_settings(tmp_path):
    evaluation = prepare_evaluation(composed(tmp_path))
    assert (evaluation.training_run, evaluation.training_differences) == (None, [])


# Copies of the model


@pytest.mark.parametrize(
    ("settings", "gpus", "copies"),
    [
        (EngineSettings(), 8, 8),
        (EngineSettings(tensor_parallel_size=2), 8, 4),
        (EngineSettings(tensor_parallel_size=2), 3, 1),
        (EngineSettings(data_parallel_size=2), 8, 2),
        (EngineSettings(), 1, 1),
        (EngineSettings(device="cpu"), 8, 1),
    ],
)
def test_an_evaluation_uses_all_gpus_unless_it_is_told_fewer(settings, gpus, copies):
    assert settings.copies(gpus) == copies


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (EngineSettings(data_parallel_size=4, tensor_parallel_size=4), "needs 16 GPUs, and this machine has 8"),
        (EngineSettings(device="cpu", data_parallel_size=2), "a CPU holds one copy"),
    ],
)
def test_more_copies_than_the_gpus_hold_raise_config_error(settings, message):
    with pytest.raises(ConfigError, match=message):
        settings.copies(8)


def test_all_turns_of_an_episode_go_to_one_copy_and_episodes_take_turns():
    route = Route(2)
    assert [route.copy_for(episode) for episode in ("a", "b", "a", "c", "b")] == [0, 1, 0, 0, 1]
    assert Route(1).copy_for("a") is None


# Starts after the first one


def ended(folder: Path, stops: dict[str, str]) -> list[EpisodeRecord]:
    """Return records of tasks with stop reasons, as a real evaluation writes them."""
    written = TalkEvaluation(folder).play([TaskItem("talk", name) for name in stops])
    return [record | {"stop": stops[record["task"]], "error": "no server"} for record in written]


ALL_STOPS = {"a": "env_error", "b": "request_refused", "c": "overlong_prompt", "d": "action_error"}


@pytest.mark.parametrize(
    ("stops", "rate", "expected"),
    [
        ({"a": "env_error", "b": "terminated"}, 0.5, ["c", "d", "a"]),  # unplayed ones first
        ({"a": "env_error", "b": "terminated", "c": "terminated", "d": "terminated"}, 0.25, []),  # finished
        ({"a": "env_error", "b": "terminated", "c": "terminated", "d": "terminated"}, 0.2, ["a"]),
        (ALL_STOPS, 1.0, []),
        (ALL_STOPS, 0.9, ["a", "b"]),  # the others would end in the same way
    ],
)
def test_another_start_plays_what_is_missing_and_repeats_failures_of_an_unfinished_evaluation(
    tmp_path, stops, rate, expected
):
    pending = pending_episodes(TASKS, 1, ended(tmp_path, stops), rate)
    assert [one.item.id for one in pending] == expected


def test_failures_count_over_the_whole_plan_and_not_over_what_is_played_again(tmp_path):
    items = [TaskItem("talk", f"t{number}") for number in range(10)]
    first = TalkEvaluation(tmp_path, allowed=0.5, concurrency=1)
    first.play(items[2:])  # two are missing, and fail
    second = TalkEvaluation(tmp_path, fault="raise", allowed=0.5, concurrency=1)
    earlier = list(read_records(second.path))
    pending = pending_episodes(items, 1, earlier, 0.5)
    share = error_share(len(items), earlier, pending, 0.5)
    with EpisodeWriter(second.path) as writer:
        asyncio.run(play_all(pending, second.setup, writer, second.reported.append, share))
    assert len(second.reported) == 2 and not share.exceeded
    assert pending_episodes(items, 1, read_records(second.path), 0.5) == []


@pytest.mark.parametrize("stop", ["action_error", "overlong_prompt"])
def test_an_evaluation_with_too_many_failures_fails_again_without_playing(tmp_path, stop):
    earlier = ended(tmp_path, {"a": stop, "b": stop, "c": stop, "d": "terminated"})
    pending = pending_episodes(TASKS, 1, earlier, 0.5)
    assert pending == []
    with pytest.raises(EnvErrorLimitError, match=rf"3 of 4 episodes .*{stop} 3.* The last error: no server"):
        error_share(len(TASKS), earlier, pending, 0.5).check()


def test_the_first_failures_do_not_keep_later_tasks_from_being_played(tmp_path):
    items = [TaskItem("talk", f"t{number:02}") for number in range(3 * MAX_INITIAL_ERRORS)]
    failing = {item.id for item in items[:MAX_INITIAL_ERRORS]}
    talk = talk_class()

    class Moody(talk):
        async def reset(self, item: TaskItem) -> list[Message]:
            if item.id in failing:
                raise EnvError("broken")
            return await super().reset(item)

    def start() -> list[EpisodeRecord]:
        evaluation = TalkEvaluation(tmp_path, allowed=0.5, concurrency=1)
        evaluation.play_with(new_session=lambda: Moody(turns=2))
        earlier = list(read_records(evaluation.path)) if evaluation.path.exists() else []
        pending = pending_episodes(items, 1, earlier, 0.5)
        share = error_share(len(items), earlier, pending, 0.5)
        with EpisodeWriter(evaluation.path) as writer:
            asyncio.run(play_all(pending, evaluation.setup, writer, evaluation.reported.append, share))
        return list(read_records(evaluation.path))

    with pytest.raises(EnvErrorLimitError):
        start()
    assert {record["task"] for record in start()} == {item.id for item in items}
    written = len(list(read_records(tmp_path / "episodes.jsonl")))
    assert len(start()) == written, "the finished evaluation is not played again"
