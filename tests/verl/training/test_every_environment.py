"""Test of all environments and a game of two seats in one training run: a tiny random model, each in its own host.

The run ends by itself. test_runs.py has one that is killed and interrupted.
"""

import json
import math
import subprocess
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.corpus import embedded_corpus
from tests.support.estimators import moved_baseline
from tests.support.models import write_model
from tests.support.packages import write_metadata
from tests.support.training_runs import command_line, run_environment, wait_for_end
from verl_agent.envs.registry import make_env
from verl_agent.envs.tasks import select_tasks
from verl_agent.trace.metrics_log import read_metrics
from verl_agent.trace.record import EpisodeRecord
from verl_agent.trace.record_files import read_records
from verl_agent.trace.token_files import read_tokens, token_files

EPISODES = {"textcraft": 2, "babyai": 2, "scienceworld": 2, "deepsearch": 2, "guess_number": 2, "duel": 4}
"""Number of episodes of a step by environment; two of `duel` are a match."""
STEPS = 2
RECIPE = """
defaults: [agent_grpo, cpu, _self_]
env:
  name: all
  retries: 0
  timeout_s: 300
  max_env_error_rate: 0
  mixture:
    - {name: textcraft, train_tasks: textcraft.train, eval_tasks: textcraft.test, options: {prompt: short}}
    - {name: babyai, train_tasks: babyai.train, eval_tasks: babyai.test, options: {prompt: short}}
    - {name: scienceworld, train_tasks: scienceworld.train, eval_tasks: scienceworld.test, options: {prompt: short}}
    - {name: deepsearch, train_tasks: easy_train, eval_tasks: easy_test, options: {prompt: short, top_k: 1}}
    - name: guess_number
      train_tasks: small_train
      eval_tasks: small_test
      options: {tolerant: true}
      agent: {name: raw}
    - name: duel
      weight: 2
      train_tasks: train
      eval_tasks: test
      options: {seats: [self, self]}
      agent: {name: raw}
agent: {name: act, options: {instructions: false}}
horizon: {max_turns: [2]}
episode: {max_tokens_per_turn: 8, on_truncated_turn: play, record_tokens: {every: 1}}
data: {train_batch_size: 7, max_prompt_length: 1024, max_response_length: 512}
algorithm: {adv_estimator: rae, rollout_correction: {bypass_mode: false}}
actor_rollout_ref:
  actor: {use_kl_loss: false, entropy_coeff: -0.1, ppo_micro_batch_size_per_gpu: 7, optim: {lr: 1.0e-2}}
  rollout: {n: 2, max_num_seqs: 16, log_prob_micro_batch_size_per_gpu: 7, val_kwargs: {n: 2}}
trainer: {total_training_steps: 2, save_freq: 1, experiment_name: all}
"""

pytestmark = pytest.mark.timeout(1500)


@dataclass(frozen=True)
class Run:
    """Results of the run."""

    folder: Path
    metrics: dict[int, dict[str, float]]
    records: list[EpisodeRecord]
    output: str
    survivors: list[str]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    root = tmp_path_factory.mktemp("every")
    folder, packages = root / "run", root / "packages"
    packages.mkdir()
    write_metadata(packages, "duel", {"verl_agent.envs": {"duel": "tests.support.arenas:Duel"}})
    (root / "all.yaml").write_text(RECIPE)
    for name in ("textcraft", "babyai", "scienceworld"):  # the check of prompts begins each task
        for split in ("train", "test"):
            tasks = select_tasks(make_env(name), f"easy_{split}")[:4]
            (root / f"{name}.{split}").write_text("\n".join(task.id for task in tasks))
    overrides = [f"actor_rollout_ref.model.path={write_model(root / 'model')}", f"trainer.default_local_dir={folder}"]
    command = command_line("train", root, "all", *overrides)
    with embedded_corpus():
        environment = run_environment(root, packages)
        ended = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=1200)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    records = [record for record in read_records(folder / "episodes") if record["purpose"] == "train"]
    return Run(folder, read_metrics(sorted(folder.glob("metrics/*.jsonl"))), records, ended.stdout, wait_for_end(root))


def test_each_step_holds_the_episodes_of_every_environment(run: Run):
    played = defaultdict(Counter)
    for record in run.records:
        played[record["step"]][record["env"]] += 1
    assert dict(played) == dict.fromkeys(range(1, STEPS + 1), EPISODES)


def test_every_episode_ends_without_an_environment_error(run: Run):
    """The random model writes nonsense. Every environment answers it, and none fails."""
    assert {record["stop"] for record in run.records} <= {"turn_limit", "terminated"}
    assert all(turn["observation"] for record in run.records for turn in record["turns"])


def test_both_steps_update_the_model(run: Run):
    assert sorted(run.metrics) == list(range(1, STEPS + 1))
    for metrics in run.metrics.values():
        assert math.isfinite(metrics["actor/loss"]) and metrics["actor/grad_norm"] > 0
        assert {f"env/{name}/success_rate" for name in EPISODES} <= metrics.keys()


def test_both_seats_are_trained_each_with_its_own_return(run: Run):
    matches = defaultdict(dict)
    for record in run.records:
        if record["env"] == "duel":
            matches[record["data"]["match"]][record["data"]["seat"]] = record
    assert len(matches) == STEPS * EPISODES["duel"] / 2
    for seats in matches.values():
        assert seats.keys() == {"left", "right"}
        assert seats["left"]["reward"] == -seats["right"]["reward"]
        assert seats["left"]["group"] == seats["right"]["group"]
    assert any(seats["left"]["reward"] for seats in matches.values())


def test_advantages_are_those_of_each_seats_running_baseline_which_checkpoints_keep(run: Run):
    """Episodes without a seat share one baseline."""
    rows = {
        (row.group, row.sample): row
        for file in token_files(run.folder)
        for group, sample in {(record["group"], record["sample"]) for record in run.records}
        for row in read_tokens(file, group, sample)
    }
    baselines = defaultdict(float)
    for step in range(1, STEPS + 1):
        returns = defaultdict(list)
        for record in run.records:
            if record["step"] == step:
                returns[role_of(record)].append(record["reward"])
        baselines |= {role: moved_baseline(baselines[role], values) for role, values in returns.items()}
        for record in run.records:
            if record["step"] == step:
                found = rows[record["group"], record["sample"]].columns["advantages"]
                (advantage,) = {round(value, 5) for value in found if value is not None and value == value}
                assert advantage == pytest.approx(record["reward"] - baselines[role_of(record)], abs=1e-4)
        saved = json.loads((run.folder / f"global_step_{step}/baselines.json").read_text())
        assert saved == pytest.approx(dict(baselines))
    assert {*baselines} == {"", "duel: duel, left", "duel: duel, right"}


def role_of(record: EpisodeRecord) -> str:
    return f"duel: duel, {record['data']['seat']}" if record["env"] == "duel" else ""


def test_a_run_ends_every_process_that_it_started(run: Run):
    assert run.survivors == []


def test_the_terminal_shows_results_and_no_library_logs(run: Run):
    assert "success" in run.output and f"checkpoint: step {STEPS}" in run.output
    assert "TransferQueue" not in run.output, "logs of libraries belong into the log file"
    assert (run.folder / "curves.png").stat().st_size > 10_000
