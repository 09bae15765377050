"""Preparation of AgentEvol: errors before the first round, and the command of each phase."""

import json
from contextlib import chdir
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from tests.support.composing import ROOT, recipe
from tests.support.episodes import talk
from verl_agent.errors import ConfigError
from verl_agent.trace.record_files import EpisodeWriter
from verl_agent.training.offline.evolve.prepare import Evolution, prepare_rounds
from verl_agent.training.offline.evolve.rounds import Phase
from verl_agent.training.offline.evolve.run import arguments, check_kept

EVOLVE = """
defaults: [agent_evolve, _self_]
evolve:
  explore: [{recipe: play.yaml, tasks: small_train, samples: 2}]
  learn: learn.yaml
  output_dir: rounds
"""
PLAY = """
defaults: [agent_eval, cpu_eval, _self_]
env: {name: guess_number, options: {tolerant: true}}
agent: {name: raw}
horizon: {eval_max_turns: 4}
episode: {max_tokens_per_turn: 8}
data: {max_prompt_length: 96, max_response_length: 160}
evaluation: {tasks: small_test}
"""
LEARN = """
defaults: [agent_sft, cpu_sft, _self_]
env: {name: guess_number, train_tasks: small_train, eval_tasks: small_test, options: {tolerant: true}}
agent: {name: raw}
episodes: {records: base.jsonl}
data: {max_length: 256, train_max_samples: 8}
model: {path: model}
"""


@pytest.fixture
def folder(tmp_path) -> Path:
    """Return a folder with the three recipes and a model without weights."""
    for name, text in (("evolve", EVOLVE), ("play", PLAY), ("learn", LEARN)):
        (tmp_path / f"{name}.yaml").write_text(text)
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text(json.dumps({"model_type": "llama"}))
    (tmp_path / "model/pytorch_model.bin").write_text("no weights to speak of")
    return tmp_path


def prepared(folder: Path, *overrides: str) -> Evolution:
    with chdir(folder):
        evolution = prepare_rounds(recipe(folder / "evolve.yaml", *overrides))
        evolution.claim()
    return evolution


def change(folder: Path, name: str, old: str, new: str) -> None:
    path = folder / f"{name}.yaml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def save(evolution: Evolution, number: int) -> None:
    weights = evolution.folder.of(Phase(number, "learn")) / "global_step_1/huggingface"
    weights.mkdir(parents=True)
    (weights / "config.json").write_text("{}")
    (weights / "model.safetensors").write_text("")


def overrides(phase: Phase, evolution: Evolution) -> dict[str, object]:
    command = arguments(phase, evolution)
    values = [OverridesParser.create().parse_override(one) for one in command[7:]]
    return {value.key_or_group: value.value() for value in values}


def test_round_0_trains_on_the_recipe_unchanged(folder):
    evolution = prepared(folder)
    with chdir(folder):
        command = arguments(Phase(0, "learn"), evolution)
    assert command[1:7] == ["-m", "verl_agent.commands.sft", "--config-dir", str(folder), "--config-name", "learn"]
    assert overrides(Phase(0, "learn"), evolution) == {
        "trainer.default_local_dir": str(folder / "rounds/round_0/learn")
    }


def test_a_round_explores_with_the_previous_policy_and_trains_the_base_model(folder):
    evolution = prepared(folder, "evolve.weight=task")
    save(evolution, 0)
    played = overrides(Phase(1, "explore"), evolution)
    assert played["model.path"] == str(folder / "rounds/round_0/learn/global_step_1/huggingface")
    assert (played["evaluation.tasks"], played["evaluation.samples"]) == ("small_train", 2)
    assert played["evaluation.seed"] != overrides(Phase(2, "explore"), evolution_with(evolution, 1))["evaluation.seed"]
    training = overrides(Phase(1, "learn"), evolution)
    assert training["episodes.explored.records"] == [str(folder / "rounds/round_1/explore/guess_number")]
    assert training["episodes.explored.weight"] == "task"
    assert {key for key in training if not key.startswith("episodes.explored.")} == {"trainer.default_local_dir"}


def evolution_with(evolution: Evolution, number: int) -> Evolution:
    save(evolution, number)
    return evolution


def test_a_round_can_train_the_previous_policy(folder):
    evolution = evolution_with(prepared(folder, "evolve.start=previous"), 0)
    assert overrides(Phase(1, "learn"), evolution)["model.path"].endswith("round_0/learn/global_step_1/huggingface")


def test_a_round_without_kept_episodes_raises_config_error(folder):
    evolution = prepared(folder)
    where = evolution.folder.of(Phase(1, "explore"))
    with EpisodeWriter(where / "episodes.jsonl") as writer:
        writer.write(talk("a", reward=0.0))
    with pytest.raises(ConfigError, match="round 1 kept none of 1 episodes"):
        check_kept(1, evolution, None)


SAVES_NO_MODEL = "model: {path: model}\ncheckpoint: {save_contents: [model, optimizer]}"


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        ("evolve", "learn: learn.yaml", "learn: gone.yaml", "evolve.learn='gone.yaml' does not exist"),
        ("evolve", "learn: learn.yaml", "learn: play.yaml", "evolve.learn='play.yaml': this is not a recipe for"),
        ("evolve", "samples: 2", "sample: 2", r"evolve.explore\[0\].sample is not a setting. Did you mean 'samples'"),
        (
            "evolve",
            "tasks: small_train",
            "tasks: small_test",
            "evolve.explore.tasks=.* and evaluation.tasks of .* share",
        ),
        ("evolve", "tasks: small_train", "tasks: nothing", "nothing"),
        ("play", "max_tokens_per_turn", "max_token_per_turn", "recipe='play.yaml': episode.max_token_per_turn is not"),
        (
            "play",
            "{name: raw}",
            "{name: raw, context: {keep: last}}",
            r"first has agent\.context\.keep=last, and the second agent\.context\.keep=all",
        ),
        (
            "learn",
            "max_length: 256",
            "max_length: 255",
            "episodes of up to 256 tokens .*, but .* has data.max_length=255",
        ),
        ("learn", "options: {tolerant: true}", "options: {}", "Use the same in both"),
        ("learn", "path: model}", "path: nowhere}", "model.path='nowhere' does not exist"),
        ("learn", "model: {path: model}", SAVES_NO_MODEL, "lacks 'hf_model'"),
    ],
)
def test_errors_of_later_rounds_are_raised_before_the_first(folder, name, old, new, message):
    change(folder, name, old, new)
    with pytest.raises(ConfigError, match=message):
        prepared(folder)


def test_checkpoints_that_play_an_explored_task_are_refused_before_the_first_round(folder):
    (folder / "validate.yaml").write_text(PLAY)
    change(folder, "learn", "train_tasks: small_train", "train_tasks: train")
    change(folder, "learn", "model: {path: model}", "model: {path: model}\ntrainer: {play: validate.yaml}")
    prepared(folder)
    change(folder, "validate", "tasks: small_test", "tasks: small_train")
    with pytest.raises(
        ConfigError, match=r"evolve\.learn='learn\.yaml' .*: trainer\.play='validate\.yaml' plays 51 tasks"
    ):
        prepared(folder)


def test_a_recipe_that_changed_between_two_starts_raises_config_error(folder):
    prepared(folder)
    change(folder, "play", "eval_max_turns: 4", "eval_max_turns: 5")
    with pytest.raises(ConfigError, match=r"another recipe: explore.guess_number.horizon.eval_max_turns was 4"):
        prepared(folder)


@pytest.mark.parametrize("path", sorted(ROOT.glob("recipes/*/evolve*.yaml")), ids=lambda path: path.parent.name)
def test_the_recipes_of_rounds_fit_each_other(path, tmp_path):
    with chdir(ROOT):
        prepare_rounds(recipe(path, f"evolve.output_dir={tmp_path}"))
