"""Tests that a run chooses its best checkpoint on held-out training tasks, and plays the test tasks twice.

Takes two minutes on two cores. The model is small and random.
"""

import subprocess
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.models import write_byte_model
from tests.support.training_runs import command_line, run_environment, wait_for_end
from verl_agent.envs.registry import make_env
from verl_agent.envs.tasks import select_tasks
from verl_agent.runs.best_checkpoint import read_best
from verl_agent.runs.identity import read_settings
from verl_agent.trace.metrics_log import read_metrics, validation_scores
from verl_agent.trace.record import EpisodeRecord
from verl_agent.trace.record_files import read_records

RECIPE = """
defaults: [agent_grpo, cpu, _self_]
env: {name: guess_number, train_tasks: small_train, eval_tasks: small_test, options: {tolerant: true}}
agent: {name: raw}
horizon: {max_turns: [2]}
episode: {max_tokens_per_turn: 8, on_truncated_turn: play}
data: {train_batch_size: 20, max_prompt_length: 256, max_response_length: 256}
actor_rollout_ref:
  actor: {use_kl_loss: false, optim: {lr: 1.0e-3}}
  rollout: {n: 2, max_num_seqs: 16}
trainer: {total_training_steps: 3, save_freq: 1, val_before_train: true, test_freq: 1, experiment_name: chosen}
"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@dataclass(frozen=True)
class Run:
    """Folder, records and output of a finished run."""

    folder: Path
    records: list[EpisodeRecord]
    output: str

    def tasks(self, purpose: str) -> dict[int, set[str]]:
        """Return the tasks played for a purpose, by step."""
        tasks: dict[int, set[str]] = defaultdict(set)
        for record in self.records:
            if record["purpose"] == purpose:
                tasks[record["step"]].add(record["task"])
        return dict(tasks)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    root = tmp_path_factory.mktemp("dev_tasks")
    root.joinpath("chosen.yaml").write_text(RECIPE)
    model = write_byte_model(root / "model", ["Guess a whole number from 1 to 12. Higher. Lower."], vocabulary=300)
    overrides = [f"trainer.default_local_dir={root / 'run'}", f"actor_rollout_ref.model.path={model}"]
    command = command_line("train", root, "chosen", *overrides)
    done = subprocess.run(command, env=run_environment(root), capture_output=True, text=True, timeout=1500)
    assert done.returncode == 0, done.stdout + done.stderr
    wait_for_end(root)
    return Run(root / "run", list(read_records(root / "run/episodes")), done.stdout)


def test_training_development_and_test_share_no_task(run: Run):
    train, dev, test = (set.union(*run.tasks(purpose).values()) for purpose in ("train", "validation", "test"))
    assert len(train) > 30 and len(dev) == 10 and len(test) == 17
    assert not (train & dev or train & test or dev & test)
    assert dev < {item.id for item in select_tasks(make_env("guess_number"), "small_train")}
    assert read_settings(run.folder)["env"]["dev_tasks"] == "auto"


def test_the_test_tasks_are_played_before_the_first_and_after_the_last_step(run: Run):
    assert sorted(run.tasks("validation")) == [0, 1, 2, 3]
    assert sorted(run.tasks("test")) == [0, 3]
    metrics = read_metrics(sorted(run.folder.glob("metrics/*.jsonl")))
    tested = [step for step, values in metrics.items() if validation_scores(values, "test")]
    assert tested == [0, 3]
    assert "test after step 3: guess_number" in run.output
    assert "success on 17 test tasks: step 0" in run.output


def test_the_best_checkpoint_is_chosen_on_the_development_tasks(run: Run):
    metrics = read_metrics(sorted(run.folder.glob("metrics/*.jsonl")))
    by_step = {
        step: score.value
        for step, values in metrics.items()
        for score in validation_scores(values)
        if step and score.measure == "success"
    }
    best = read_best(run.folder)
    assert best is not None and by_step[best.step] == best.value == max(by_step.values())
    assert f"best checkpoint: step {best.step}, success {best.value:.3f} on env.dev_tasks, which chose it" in run.output
