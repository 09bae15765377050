"""Test played validation: its checks, its log, the best checkpoint that follows success, and a whole run."""

import json
from contextlib import chdir
from pathlib import Path

import pytest

from tests.support.composing import recipe
from tests.support.episodes import talk
from tests.support.offline_runs import finished, metrics, start, write_offline_recipes
from verl_agent.config.plan import OfflinePlan
from verl_agent.errors import ConfigError
from verl_agent.runs.best_checkpoint import validation_result
from verl_agent.trace.metrics_log import read_metrics
from verl_agent.trace.record_files import EpisodeWriter
from verl_agent.training.offline.dpo import DPO
from verl_agent.training.offline.play import CheckpointPlayer, check_play, play_metrics
from verl_agent.training.offline.sft import SFT

EVAL = """
defaults: [agent_eval, cpu_eval, _self_]
env: {name: guess_number, eval_tasks: small_test, hosts: {where: inline}}
agent: {name: raw}
horizon: {eval_max_turns: 2}
episode: {max_tokens_per_turn: 8}
data: {max_prompt_length: 64, max_response_length: 64}
engine: {max_num_seqs: 2, enforce_eager: true}
evaluation: {max_tasks: 2, concurrency: 2}
"""
SAVED = "checkpoint.save_contents=[model,optimizer,extra,hf_model]"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("played")
    write_offline_recipes(folder)
    (folder / "README.md").write_text("# Notes")
    (folder / "eval.yaml").write_text(EVAL)
    return folder


def checked(folder: Path, *overrides: str, name: str = "sft") -> dict:
    with chdir(folder):
        plan = OfflinePlan.read(recipe(folder / f"{name}.yaml", *overrides))
        return dict(check_play(plan, (SFT if name == "sft" else DPO).rows(plan).recorded))


def test_the_settings_that_decide_on_the_results_identify_the_run(folder):
    assert checked(folder) == {}
    played = checked(folder, "trainer.play=eval.yaml", SAVED)["played"]
    assert (played["env"]["name"], played["tasks"], played["max_tasks"]) == ("guess_number", "small_test", 2)
    assert checked(folder, "trainer.play=eval.yaml", SAVED, name="dpo")["played"] == played


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("trainer.play=none.yaml", r"trainer\.play='none\.yaml' does not exist"),
        ("trainer.play=sft.yaml", r"trainer\.play='sft\.yaml': .*not a recipe for `verl-agent eval`"),
        (
            "trainer.play=README.md",
            r"trainer\.play='README\.md' is no recipe\. Allowed: a \.yaml file for .*agent eval",
        ),
        ("agent.name=act episodes.records=[]", r"it has agent\.name=raw, and this recipe agent\.name=act\."),
        (
            "++agent.options.turns_left=false",
            r"it has agent\.options\.turns_left unset, .* agent\.options\.turns_left=false",
        ),
        ("env.train_tasks=small_test", "small_test"),
        ("checkpoint.save_contents=[model,optimizer,extra]", "lacks hf_model"),
    ],
)
def test_a_recipe_that_cannot_play_is_refused_before_the_start(folder, change, message):
    with pytest.raises(ConfigError, match=message):
        checked(folder, "trainer.play=eval.yaml", SAVED, *change.split())


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("sft", ["episodes.records=seen.jsonl", "episodes.oracle=false", "env.train_tasks=test"]),
        ("dpo", ["preference.records=seen.jsonl", "preference.val_share=0", "data.val_files=null"]),
    ],
)
def test_a_recipe_that_plays_tasks_of_recorded_episodes_is_refused(folder, name, changes):
    (folder / "seen.yaml").write_text(EVAL.replace("evaluation: {", "evaluation: {tasks: small_train, "))
    with EpisodeWriter(folder / "seen.jsonl") as writer:
        for reply, reward in (("Look right", 1.0), ("Look wrong", 0.0)):
            for task in ("5:1", "5:2", "80:1", "80:2"):
                writer.write(talk(reply, reward, task, env="guess_number", purpose="collection"))
    played = checked(folder, "trainer.play=eval.yaml", SAVED, "data.train_batch_size=1", *changes, name=name)["played"]
    assert played["tasks"] == "small_test"
    key = changes[0].partition("=")[0]
    message = rf"plays 2 tasks of evaluation.tasks='small_train' that {key} trains on, such as '5:1'\. Set"
    with pytest.raises(ConfigError, match=message):
        checked(folder, "trainer.play=seen.yaml", SAVED, *changes, name=name)


def test_checkpoints_may_be_played_with_other_options_than_those_of_the_training(folder):
    played = checked(folder, "trainer.play=eval.yaml", SAVED, "++env.options.tolerant=true")["played"]
    assert not played["env"]["options"]


def test_success_and_return_of_an_evaluation_are_a_validation_and_decide_before_the_loss(tmp_path):
    success, earned = {"mean": 0.25}, {"mean": -1.5}
    config = {"env": {"name": "guess"}, "evaluation": {"samples": 2}}
    report = {"version": 3, "config": config, "results": [{"success": success, "mean_return": earned}]}
    (tmp_path / "evaluation.json").write_text(json.dumps(report))
    values = play_metrics(tmp_path)
    assert values == {"val-aux/guess/success/mean@2": 0.25, "val-core/guess/reward/mean@2": -1.5}
    best = validation_result(7, {**values, "val/loss": 0.1})
    assert best is not None and (best.step, best.measure, best.value) == (7, "success", 0.25)
    (tmp_path / "evaluation.json").write_text(json.dumps({**report, "results": []}))
    with pytest.raises(ConfigError, match="no valid episode"):
        play_metrics(tmp_path)


def test_a_failed_evaluation_stops_the_run_and_a_played_step_is_not_played_again(folder, tmp_path):
    player = CheckpointPlayer(str(folder / "eval.yaml"), tmp_path)
    with pytest.raises(ConfigError, match=r"trainer\.play='.*eval\.yaml' ended with status 2 at step 3"):
        player.play(3)
    log = tmp_path / "metrics" / "play.jsonl"
    log.parent.mkdir()
    log.write_text('{"step": 3, "data": {"val-aux/guess_number/success/mean@1": 0.5}}\n')
    player.play(3)
    assert list(read_metrics(log)) == [3]


@pytest.mark.slow
def test_supervised_training_plays_its_checkpoints_and_keeps_the_best(folder):
    run = folder / "runs/played"
    keys = [f"trainer.default_local_dir={run}", f"trainer.play={folder / 'eval.yaml'}", "trainer.save_freq=9", SAVED]
    output = finished(start(folder, "sft", *keys), timeout_s=900)
    played = {step: values for step, values in metrics(run).items() if "val-aux/guess_number/success/mean@1" in values}
    assert list(played) == [9, 18] and all("train/loss" in values for values in played.values())
    note = json.loads((run / "best" / "best.json").read_text())
    assert note["measure"] == "success" and f"best checkpoint: step {note['step']}, success" in output
    assert (run / "curves.png").is_file() and (run / "play" / "step_18" / "evaluation.json").is_file()
    log = run / "metrics" / "play.jsonl"
    first, last = log.read_text().splitlines(keepends=True)
    log.write_text(first)  # as if the run had been killed while it played its last checkpoint
    finished(start(folder, "sft", *keys), timeout_s=300)
    assert log.read_text() == first + last


@pytest.mark.parametrize("name", ["sft", "dpo"])
def test_records_of_another_agent_are_refused_before_the_start(folder, name):
    key = {"sft": "episodes", "dpo": "preference"}[name]
    with pytest.raises(ConfigError, match=rf"agent\.name='act' finds no action in .* replies of {key}\.records"):
        checked(folder, "agent.name=act", name=name)
