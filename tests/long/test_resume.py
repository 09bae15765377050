"""A mixture under GiGPO, with an adaptive horizon, killed in the middle: what follows is what would have followed.

Minutes of work on two cores; the model is small and knows nothing.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.models import write_model
from tests.verl.test_training import REPOSITORY, wait_for_end
from verl_agent.envs.tasks import select_tasks
from verl_agent.horizon import Adaptive, AdaptiveState, Horizon
from verl_agent.trace.metrics_log import read_metrics
from verl_agent.trace.record import EpisodeRecord
from verl_agent.trace.record_files import read_records
from verl_agent.training.mixture import MixtureOrder
from verl_agent.training.trainer import STATE_FILE

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
    """What a run that was killed once left behind."""

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
    command = [
        sys.executable,
        "-m",
        "verl_agent.commands.train",
        "--config-dir",
        str(recipes),
        "--config-name",
        "mixed",
    ]
    command += [f"actor_rollout_ref.model.path={write_model(root / 'model')}", f"trainer.default_local_dir={folder}"]
    environment = {
        **os.environ,
        "VERL_AGENT_TEST_RUN": str(root),
        "PYTHONPATH": str(REPOSITORY),
        "VERL_PLATFORM": "cpu",
    }

    first = subprocess.Popen(command, env=environment)
    tracker, give_up = folder / "latest_checkpointed_iteration.txt", time.monotonic() + 1500
    while not (tracker.is_file() and int(tracker.read_text() or 0) >= 2):
        assert first.poll() is None and time.monotonic() < give_up
        time.sleep(0.5)
    first.send_signal(signal.SIGKILL)
    first.wait()
    killed_after = int(tracker.read_text())
    wait_for_end(str(root))
    subprocess.run(command, env=environment, check=True, timeout=1500)
    wait_for_end(str(root))
    return Run(
        folder,
        killed_after,
        read_metrics(sorted(folder.glob("metrics/*.jsonl"))),
        list(read_records(folder / "episodes")),
    )


def played(run: Run, env: str) -> dict[int, list[EpisodeRecord]]:
    by_step = defaultdict(list)
    for record in run.records:
        if record["env"] == env and record["purpose"] == "train":
            by_step[record["step"]].append(record)
    return by_step


def test_the_items_are_those_of_a_run_that_was_never_stopped(run: Run):
    items = {name: select_tasks(name, SPLITS[name][0], OPTIONS[name]) for name in OPTIONS}
    order = MixtureOrder({name: len(items[name]) for name in OPTIONS}, [1.0, 2.0], seed=1)
    for step in range(1, STEPS + 1):
        expected = {order.at(position) for position in range((step - 1) * BATCH, step * BATCH)}
        ids = {(label, items[label][number].id) for label, number in expected}
        assert ids == {(name, record["task"]) for name in OPTIONS for record in played(run, name)[step]}


def test_the_adaptive_horizon_follows_from_the_metrics_alone(run: Run):
    """Replayed from the log of both starts; so neither the kill nor the restart left a trace."""
    state = AdaptiveState(GROWING)
    for step in range(1, STEPS + 1):
        assert {record["max_turns"] for record in played(run, "guess_number")[step]} == {state.max_turns}, step
        saved = json.loads((run.folder / f"global_step_{step}" / STATE_FILE).read_text())
        if step == run.killed_after and step not in run.metrics:  # killed between saving and logging
            state.restore(saved["guess_number"])
            continue
        values = run.metrics[step]
        state.observe(values["env/guess_number/success_rate"], values["env/guess_number/turn_limit"])
        assert saved == {"guess_number": state.saved()}
    assert state.max_turns > 1, "it never grew, so nothing was tried"


def test_the_staged_horizon_of_the_other_part_follows_the_step(run: Run):
    limits = {step: {record["max_turns"] for record in records} for step, records in played(run, "textcraft").items()}
    assert limits == {1: {1}, 2: {1}, 3: {2}, 4: {2}, 5: {2}}


def test_costs_are_learnt_and_the_raw_score_is_kept(run: Run):
    for record in (record for record in run.records if record["purpose"] == "train"):
        turns = record["turns"]
        cost = 0.01 * len(turns) + 0.02 * sum(turn["info"].get("invalid_action", 0.0) for turn in turns)
        assert record["shaped_return"] == pytest.approx(record["reward"] - cost)
    for values in run.metrics.values():
        assert values["episode/shaped_return_mean"] < values["episode/reward_mean"]


def test_the_weights_move_where_episodes_differ(run: Run):
    """In a step whose episodes all earned the same there is nothing to learn."""
    moved = {step: values["actor/grad_norm"] > 0 for step, values in run.metrics.items()}
    assert moved == {step: values["critic/advantages/max"] > 0 for step, values in run.metrics.items()}
    assert any(moved.values())
