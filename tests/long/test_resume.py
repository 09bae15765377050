"""Tests that a killed run of a mixture with GiGPO and an adaptive horizon resumes as if it had not been killed.

Takes minutes on two cores. The model is small and random.
"""

import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.models import write_model
from tests.support.training_runs import command_line, kill_after_checkpoint, run_to_end
from verl_agent.envs.registry import make_env
from verl_agent.envs.tasks import select_tasks
from verl_agent.horizon import Adaptive, Horizon, Outcome
from verl_agent.trace.metrics_log import read_metrics
from verl_agent.trace.record import EpisodeRecord
from verl_agent.trace.record_files import read_records
from verl_agent.training.mixture import MixtureOrder
from verl_agent.training.trainer import STATE_FILE
from verl_agent.training.turn_limits import new_schedule

STEPS, BATCH = 5, 3
GROWING = Horizon([1], grow_by=1, up_to=4, adaptive=Adaptive(turn_limit_above=0.3, window=1))
OPTIONS = {"guess_number": {"tolerant": True}, "textcraft": {"prompt": "short"}}
SPLITS = {"guess_number": ("small_train", "small_test"), "textcraft": ("easy_train", "easy_test")}
RECIPE = """
defaults: [agent_grpo, cpu, _self_]
env:
  name: mixed
  mixture:
    - name: guess_number
      weight: 1
      train_tasks: small_train
      eval_tasks: small_test
      options: {tolerant: true}
      agent: {name: raw}
      horizon: {max_turns: [1], grow_by: 1, up_to: 4, adaptive: {turn_limit_above: 0.3, window: 1}}
    - name: textcraft
      weight: 2
      train_tasks: easy_train
      eval_tasks: easy_test
      options: {prompt: short}
      agent: {name: act, options: {instructions: false}}
      horizon: {max_turns: [1, 2], steps_per_stage: 2}
horizon: {max_turns: [1]}
episode: {max_tokens_per_turn: 4, on_truncated_turn: play}
credit: {place: turn, step_cost: 0.01, invalid_action_cost: 0.02, turn_gamma: 0.9}
data: {train_batch_size: 3, max_prompt_length: 1024, max_response_length: 512}
algorithm: {adv_estimator: gigpo, rollout_correction: {bypass_mode: false}}
actor_rollout_ref:
  actor: {use_kl_loss: false, optim: {lr: 1.0e-3}}
  rollout: {n: 4, max_num_seqs: 16, log_prob_micro_batch_size_per_gpu: 4}
trainer: {total_training_steps: 5, save_freq: 1, max_actor_ckpt_to_keep: 9, experiment_name: mixed}
"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


@dataclass(frozen=True)
class Run:
    """Folder, metrics and records of a run that was killed once."""

    folder: Path
    killed_after: int
    metrics: dict[int, dict[str, float]]
    records: list[EpisodeRecord]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Train, kill with SIGKILL once two steps are saved, and run the same command again to the end."""
    root = tmp_path_factory.mktemp("mixed")
    folder, recipes = root / "run", root / "recipes"
    recipes.mkdir()
    recipes.joinpath("mixed.yaml").write_text(RECIPE)
    overrides = [f"actor_rollout_ref.model.path={write_model(root / 'model')}", f"trainer.default_local_dir={folder}"]
    command = command_line("train", recipes, "mixed", *overrides)
    killed_after = kill_after_checkpoint(root, command, 2)
    run_to_end(root, command)
    return Run(
        folder,
        killed_after,
        read_metrics(sorted(folder.glob("metrics/*.jsonl"))),
        list(read_records(folder / "episodes")),
    )


def records_by_step(run: Run, env: str) -> dict[int, list[EpisodeRecord]]:
    """Return the training records of an environment by step."""
    by_step = defaultdict(list)
    for record in run.records:
        if record["env"] == env and record["purpose"] == "train":
            by_step[record["step"]].append(record)
    return by_step


def test_tasks_are_those_of_an_uninterrupted_run(run: Run):
    items = {name: select_tasks(make_env(name, OPTIONS[name]), SPLITS[name][0]) for name in OPTIONS}
    order = MixtureOrder({name: len(items[name]) for name in OPTIONS}, [1.0, 2.0], seed=1)
    for step in range(1, STEPS + 1):
        expected = {order.at(position) for position in range((step - 1) * BATCH, step * BATCH)}
        ids = {(label, items[label][number].id) for label, number in expected}
        assert ids == {(name, record["task"]) for name in OPTIONS for record in records_by_step(run, name)[step]}


def outcome_of(record: EpisodeRecord) -> Outcome:
    turns, limited = len(record["turns"]), record["stop"] == "turn_limit"
    return Outcome(record["task"], record["category"], record["max_turns"], turns, record["success"], limited)


def test_adaptive_horizon_follows_from_the_recorded_episodes(run: Run):
    """A replay of the records of both starts gives the same states."""
    state, task = new_schedule(GROWING), make_env("guess_number").tasks(SPLITS["guess_number"][0])[0]
    for step in range(1, STEPS + 1):
        played = records_by_step(run, "guess_number")[step]
        assert {record["max_turns"] for record in played} == {state.limit(step, task)}, step
        saved = json.loads((run.folder / f"global_step_{step}" / STATE_FILE).read_text())
        state.observe([outcome_of(record) for record in played])
        assert saved == {"guess_number": state.saved()}
    assert state.limit(STEPS + 1, task) > 1, "the horizon never grew, so the test proves nothing"


def test_staged_horizon_follows_the_step(run: Run):
    limits = {
        step: {record["max_turns"] for record in records} for step, records in records_by_step(run, "textcraft").items()
    }
    assert limits == {1: {1}, 2: {1}, 3: {2}, 4: {2}, 5: {2}}


def test_shaped_return_has_the_costs_and_the_reward_does_not(run: Run):
    for record in (record for record in run.records if record["purpose"] == "train"):
        turns = record["turns"]
        cost = 0.01 * len(turns) + 0.02 * sum(turn["info"].get("invalid_action", 0.0) for turn in turns)
        assert record["shaped_return"] == pytest.approx(record["reward"] - cost)
    for values in run.metrics.values():
        assert values["episode/shaped_return_mean"] < values["episode/reward_mean"]


def test_weights_change_in_steps_with_different_returns_only(run: Run):
    changed = {step: values["actor/grad_norm"] > 0 for step, values in run.metrics.items()}
    assert changed == {step: values["critic/advantages/max"] > 0 for step, values in run.metrics.items()}
    assert any(changed.values())
