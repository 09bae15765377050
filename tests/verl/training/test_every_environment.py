"""Test of all environments in one training run: a tiny random model, each environment in its own host process."""

import math
import subprocess
from collections import Counter, defaultdict
from dataclasses import dataclass

import pytest

from tests.support.corpus import embedded_corpus
from tests.support.models import write_model
from tests.support.training_runs import command_line, run_environment
from verl_agent.trace.metrics_log import read_metrics
from verl_agent.trace.record import EpisodeRecord
from verl_agent.trace.record_files import read_records

NAMES = ("textcraft", "babyai", "scienceworld", "deepsearch", "guess_number")
SAMPLES, STEPS = 2, 2
RECIPE = """
defaults: [agent_grpo, cpu, _self_]
env:
  name: all
  retries: 0
  max_env_error_rate: 0
  mixture:
    - {name: textcraft, train_tasks: easy_train, eval_tasks: easy_test, options: {prompt: short}}
    - {name: babyai, train_tasks: easy_train, eval_tasks: easy_test, options: {prompt: short}}
    - {name: scienceworld, train_tasks: easy_train, eval_tasks: easy_test, options: {prompt: short}}
    - {name: deepsearch, train_tasks: easy_train, eval_tasks: easy_test, options: {prompt: short, top_k: 1}}
    - name: guess_number
      train_tasks: small_train
      eval_tasks: small_test
      options: {tolerant: true}
      agent: {name: raw}
agent: {name: act, options: {instructions: false}}
horizon: {max_turns: [2]}
episode: {max_tokens_per_turn: 8, on_truncated_turn: play}
data: {train_batch_size: 5, max_prompt_length: 1024, max_response_length: 512}
algorithm: {adv_estimator: reinforce_plus_plus, rollout_correction: {bypass_mode: false}}
actor_rollout_ref:
  actor: {use_kl_loss: false, entropy_coeff: -0.1, ppo_micro_batch_size_per_gpu: 5, optim: {lr: 1.0e-2}}
  rollout: {n: 2, max_num_seqs: 16, log_prob_micro_batch_size_per_gpu: 5}
trainer: {total_training_steps: 2, save_freq: -1, experiment_name: all}
"""

pytestmark = pytest.mark.timeout(1500)


@dataclass(frozen=True)
class Run:
    """Metrics and episode records of the run."""

    metrics: dict[int, dict[str, float]]
    records: list[EpisodeRecord]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    root = tmp_path_factory.mktemp("every")
    (root / "all.yaml").write_text(RECIPE)
    overrides = [f"actor_rollout_ref.model.path={write_model(root / 'model')}", f"trainer.default_local_dir={root}/run"]
    command = command_line("train", root, "all", *overrides)
    with embedded_corpus():
        ended = subprocess.run(command, env=run_environment(root), capture_output=True, text=True, timeout=1200)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return Run(read_metrics(sorted(root.glob("run/metrics/*.jsonl"))), list(read_records(root / "run/episodes")))


def test_each_step_holds_the_episodes_of_every_environment(run: Run):
    played = defaultdict(Counter)
    for record in run.records:
        played[record["step"]][record["env"]] += 1
    assert dict(played) == {step: dict.fromkeys(NAMES, SAMPLES) for step in range(1, STEPS + 1)}


def test_every_episode_ends_without_an_environment_error(run: Run):
    """The random model writes nonsense. Every environment answers it, and none fails."""
    assert {record["stop"] for record in run.records} <= {"turn_limit", "terminated"}
    assert all(turn["observation"] for record in run.records for turn in record["turns"])


def test_both_steps_update_the_model(run: Run):
    assert sorted(run.metrics) == list(range(1, STEPS + 1))
    for metrics in run.metrics.values():
        assert math.isfinite(metrics["actor/loss"]) and metrics["actor/grad_norm"] > 0
        assert {f"env/{name}/success_rate" for name in NAMES} <= metrics.keys()
