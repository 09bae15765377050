"""An evaluation plays what is missing, records every try, bounds what runs at once, and goes on where it stopped."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from omegaconf import DictConfig, OmegaConf

from tests.support.fakes import ScriptedPolicy, plain, talk_class
from verl_agent.errors import ConfigError, EnvErrorLimitError
from verl_agent.evaluation.job import check_device, model_name, prepare_evaluation
from verl_agent.evaluation.loop import ONLY_FAULTS, EvaluationSetup, episode_seed, pending, play_all
from verl_agent.evaluation.vllm_engine import request_options
from verl_agent.platform.detect import use_cpu_device
from verl_agent.rollout.episode import EpisodeLimits
from verl_agent.trace.record import EpisodeRecord
from verl_agent.trace.record_files import EpisodeWriter, read_records
from verl_agent.types import Episode, Message, Reply, StopReason, TaskItem

TASKS = [TaskItem("talk", name) for name in "abcd"]


class Evaluation:
    """A small evaluation of `Talk` with scripted replies; remembers what it was told and given."""

    def __init__(self, folder: Path, fault: str = "", allowed: float = 1.0, concurrency: int = 2) -> None:
        self.path, self.talk = folder / "episodes.jsonl", talk_class()
        self.seen: list[Episode] = []
        self.seeds: list[int] = []
        self.setup = EvaluationSetup(
            new_env=lambda: self.talk(turns=2, fault=fault),
            new_agent=plain,
            new_policy=self._policy,
            limits=EpisodeLimits(max_turns=3, timeout_s=1.0, retries=1),
            tasks="test",
            model="models/x",
            concurrency=concurrency,
            max_env_error_rate=allowed,
        )

    def play(self, items: Sequence[TaskItem] = TASKS, samples: int = 1) -> list[EpisodeRecord]:
        """Play what is missing; returns all that is on record."""
        earlier = list(read_records(self.path)) if self.path.exists() else []
        with EpisodeWriter(self.path) as writer:
            asyncio.run(play_all(pending(items, samples, earlier), self.setup, writer, self.seen.append))
        return list(read_records(self.path))

    def _policy(self, item: TaskItem, seed: int) -> ScriptedPolicy:
        self.seeds.append(seed)
        return ScriptedPolicy(["one", "two"])


def test_every_task_is_played_and_recorded_as_evaluation(tmp_path):
    records = Evaluation(tmp_path).play(samples=2)
    assert sorted((record["task"], record["sample"]) for record in records) == [(t, s) for t in "abcd" for s in (0, 1)]
    assert {(record["purpose"], record["split"], record["model"]) for record in records} == {
        ("evaluation", "test", "models/x")
    }
    assert all(record["success"] for record in records)


def test_a_second_run_plays_nothing_again_and_only_what_was_added(tmp_path):
    first = Evaluation(tmp_path)
    first.play(TASKS[:2])
    second = Evaluation(tmp_path)
    records = second.play(TASKS[:3])
    assert [episode.item.id for episode in second.seen] == ["c"]
    assert len(records) == 3
    third = Evaluation(tmp_path)
    assert third.play(TASKS[:3]) == records
    assert third.seeds == []


def test_an_episode_has_its_own_seed_whatever_is_played_beside_it(tmp_path):
    alone = Evaluation(tmp_path)
    alone.play([TASKS[2]])
    assert alone.seeds == [episode_seed(1, "c", 0)]


def test_a_failed_environment_is_retried_recorded_and_told(tmp_path):
    evaluation = Evaluation(tmp_path, fault="raise")
    records = evaluation.play(TASKS[:1])
    assert [(record["attempt"], record["stop"]) for record in records] == [(1, "env_error"), (2, "env_error")]
    assert [episode.stop for episode in evaluation.seen] == [StopReason.ENV_ERROR]


def test_too_many_failures_stop_it_and_keep_what_was_played(tmp_path):
    with pytest.raises(
        EnvErrorLimitError, match=r"2 of 2 episodes failed .*of 4 planned; env\.max_env_error_rate=0\.25"
    ):
        Evaluation(tmp_path, fault="raise", allowed=0.25, concurrency=1).play()
    assert len({record["task"] for record in read_records(tmp_path / "episodes.jsonl")}) == 2


def test_nothing_but_failures_at_first_stops_it_early(tmp_path):
    evaluation = Evaluation(tmp_path, fault="raise", allowed=0.9, concurrency=1)
    with pytest.raises(EnvErrorLimitError):
        evaluation.play(samples=100)
    assert len(evaluation.seen) == ONLY_FAULTS


def test_no_more_episodes_run_at_once_than_allowed(tmp_path):
    evaluation = Evaluation(tmp_path, concurrency=3)
    running: list[int] = []

    class Slow(ScriptedPolicy):
        async def reply(self, messages: Sequence[Message]) -> Reply:
            running.append(sum(not env.closed for env in evaluation.talk.made))
            await asyncio.sleep(0)
            return await super().reply(messages)

    evaluation.setup = EvaluationSetup(
        evaluation.setup.new_env,
        plain,
        lambda item, seed: Slow(["one", "two"]),
        EpisodeLimits(3),
        "test",
        "x",
        concurrency=3,
    )
    evaluation.play(samples=3)
    assert max(running) == 3


def test_a_policy_that_fails_is_a_bug_and_ends_the_evaluation(tmp_path):
    evaluation = Evaluation(tmp_path)
    evaluation.setup = EvaluationSetup(
        evaluation.setup.new_env,
        plain,
        lambda item, seed: ScriptedPolicy([RuntimeError("engine")]),
        EpisodeLimits(3),
        "test",
        "x",
    )
    with pytest.raises(RuntimeError, match="engine"):
        evaluation.play()
    assert all(env.closed for env in evaluation.talk.made)


def test_the_engine_is_asked_for_log_probs_only_if_the_caller_is():
    assert [request_options(given)["logprobs"] for given in ({}, {"logprobs": False}, {"logprobs": True})] == [
        None,
        None,
        0,
    ]


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("/x/runs/grpo/global_step_25/actor/huggingface", "grpo_step25"),
        ("/x/runs/sft/global_step_4/huggingface", "sft_step4"),
        ("/cache/models/smollm2-135m", "smollm2-135m"),
        ("Qwen/Qwen2.5-3B-Instruct", "Qwen2.5-3B-Instruct"),
    ],
)
def test_a_model_has_a_short_name(model, name):
    assert model_name(model) == name


def composed(folder: Path, **evaluation) -> DictConfig:
    """A recipe as Hydra composes it, with a model that reads 128 tokens."""
    model = folder / "model"
    model.mkdir(exist_ok=True)
    (model / "config.json").write_text(json.dumps({"model_type": "llama", "max_position_embeddings": 128}))
    (model / "model.safetensors").touch()
    return OmegaConf.create(
        {
            "env": {"name": "guess_number"},
            "horizon": {"max_turns": [3]},
            "episode": {"max_tokens_per_turn": 8},
            "agent": {},
            "data": {"max_prompt_length": 64, "max_response_length": 64},
            "model": {"path": str(model)},
            "engine": {"device": "cpu" if use_cpu_device() else "cuda"},
            "evaluation": {"output_dir": str(folder / "out"), "tasks": "test", **evaluation},
        }
    )


def test_an_evaluation_knows_what_is_to_be_played(tmp_path):
    job = prepare_evaluation(composed(tmp_path, samples=3, max_tasks=2))
    assert (len(job.slots), job.planned, job.model) == (6, 6, str(tmp_path / "model"))


def test_an_evaluation_may_grow_in_its_folder(tmp_path):
    prepare_evaluation(composed(tmp_path, samples=1))
    assert prepare_evaluation(composed(tmp_path, samples=2, concurrency=1)).folder == tmp_path / "out"


def test_a_folder_keeps_to_one_evaluation(tmp_path):
    prepare_evaluation(composed(tmp_path, temperature=1.0))
    with pytest.raises(ConfigError, match=r"holds another evaluation: evaluation\.temperature was 1\.0, is now 0\.5"):
        prepare_evaluation(composed(tmp_path, temperature=0.5))


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("samples", 0, "evaluation.samples must be >= 1"),
        ("temperature", -1, "evaluation.temperature must be >= 0"),
        ("top_p", 0, "evaluation.top_p must be above 0"),
        ("purpose", "train", "evaluation.purpose='train' is not allowed. Allowed: evaluation, collection"),
        ("sample", 2, "Did you mean 'samples'"),
        ("tasks", "tset", "Did you mean 'test'"),
        ("compare_with", "runs/never_was", "evaluation.compare_with='runs/never_was' is no folder"),
        ("output_dir", "???", "lacks a value for evaluation.output_dir"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_is_written(tmp_path, setting, value, message):
    with pytest.raises(ConfigError, match=message):
        prepare_evaluation(composed(tmp_path, **{setting: value}))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("section", "key", "value", "message"),
    [
        ("engine", "device", "gpu", r"engine\.device='gpu' is not known\. Allowed: cuda, cpu\."),
        (
            "data",
            "max_response_length",
            65,
            r"make episodes of up to 129 tokens, and model\.path='.*' reads at most 128",
        ),
    ],
)
def test_what_machine_or_model_cannot_do_is_refused_before_anything_is_written(tmp_path, section, key, value, message):
    config = composed(tmp_path)
    config[section][key] = value
    with pytest.raises(ConfigError, match=message):
        prepare_evaluation(config)
    assert not (tmp_path / "out").exists()


def test_a_recipe_for_another_machine_names_what_to_do():
    here, elsewhere = ("cpu", "cuda") if use_cpu_device() else ("cuda", "cpu")
    check_device(here)
    with pytest.raises(ConfigError, match=rf"^engine\.device='{elsewhere}': .* engine\.device={here}"):
        check_device(elsewhere)


def test_samples_that_would_all_be_the_same_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="would play the same episode again"):
        prepare_evaluation(composed(tmp_path, samples=2, temperature=0))
