"""Test of a whole asynchronous training run on the CPU that is killed and interrupted, with a tiny random model.

Every step records its tokens, so the test knows which episodes each step trained on, and by which weights each token
was sampled. Takes minutes on two cores.
"""

import os
import signal
import subprocess
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.bench.partial import WAITING, register
from tests.bench.waiting import WaitingEnv
from tests.support.models import write_byte_model
from tests.support.training_runs import (
    command_line,
    last_step,
    run_environment,
    uninterrupted_tasks,
    wait_for_end,
)
from tests.support.waiting import wait_until
from verl_agent.trace.abandoned import read_abandoned
from verl_agent.trace.metrics_log import read_metrics
from verl_agent.trace.record import EpisodeRecord
from verl_agent.trace.record_files import read_records
from verl_agent.trace.token_files import token_files

STEPS, BATCH, SAMPLES = 6, 4, 4
AHEAD = BATCH // 2
"""Groups that wait or are in flight after a step, by `num_warmup_batches: 0.5` of the overlay."""
RECIPE = f"""
defaults: [agent_grpo, cpu, _self_]
env: {{name: waiting, dev_tasks: null, options: {{median_s: 0.2}}}}
agent: {{name: raw}}
horizon: {{max_turns: [4, 8], steps_per_stage: 3}}
episode: {{max_tokens_per_turn: 8, on_truncated_turn: play, record_tokens: {{every: 1, groups: 99}}}}
data: {{train_batch_size: {BATCH}, max_prompt_length: 64, max_response_length: 512}}
actor_rollout_ref:
  actor:
    use_kl_loss: false
    ppo_mini_batch_size: 2
    optim: {{lr: 1.0e-3}}
    fsdp_config: {{mixed_precision: {{param_dtype: fp32}}}}
  rollout: {{n: {SAMPLES}, max_num_seqs: 32, dtype: float32}}
trainer: {{total_training_steps: {STEPS}, save_freq: 1, test_freq: 1, max_actor_ckpt_to_keep: 1}}
"""
"""Environment with a long tail of latencies, so that some episodes are in flight at every update and at every stop."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


@dataclass(frozen=True)
class Run:
    """Results of a run that was stopped twice.

    Attributes:
        folder: folder of the run.
        stopped_after: last saved step at each stop.
        metrics: metrics by step.
        records: records of all episodes.
        rows: rows of the token files by step.
    """

    folder: Path
    stopped_after: list[int]
    metrics: dict[int, dict[str, float]]
    records: list[EpisodeRecord]
    rows: dict[int, list[dict[str, object]]]

    @property
    def trained(self) -> set[str]:
        """Groups that a step has trained on."""
        return {str(row["group"]) for rows in self.rows.values() for row in rows}


def stop(command: list[str], root: Path, step: int, sent: signal.Signals) -> int:
    """Train until a step is saved, send a signal, and return the last saved step; no process is left."""
    folder = root / "run"
    process = subprocess.Popen(command, env=run_environment(root, root / "package"), start_new_session=True)
    wait_until(lambda: last_step(folder) >= step, 1500, running=process)
    if sent is signal.SIGINT:  # a terminal sends it to every process of its foreground group
        os.killpg(process.pid, sent)
    else:
        process.send_signal(sent)
    process.wait(120)
    assert wait_for_end(root) == []
    return last_step(folder)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Train, kill with SIGKILL after step 2 and interrupt with Ctrl-C after step 4, each time with the same command."""
    root = tmp_path_factory.mktemp("partial")
    root.joinpath("recipe.yaml").write_text(RECIPE)
    model = write_byte_model(root / "model", ["Begin. Go on."], vocabulary=300)
    folder = root / "run"
    paths = [f"actor_rollout_ref.model.path={model}", f"trainer.default_local_dir={folder}"]
    command = command_line("train", root, "recipe", "+overlay/rollout=partial", *paths)
    register(root, **WAITING)
    stopped_after = [stop(command, root, 2, signal.SIGKILL), stop(command, root, 4, signal.SIGINT)]
    subprocess.run(command, env=run_environment(root, root / "package"), check=True, timeout=1500)
    assert wait_for_end(root) == []
    return read(folder, stopped_after)


def read(folder: Path, stopped_after: list[int]) -> Run:
    """Read the results of a run from its folder."""
    return Run(
        folder,
        stopped_after,
        read_metrics(sorted(folder.glob("metrics/*.jsonl"))),
        list(read_records(folder / "episodes")),
        {int(file.stem.removeprefix("step_")): pq.read_table(file).to_pylist() for file in token_files(folder)},
    )


def test_every_step_trains_on_a_whole_batch_of_its_own_episodes(run: Run):
    trained = Counter((row["group"], row["sample"]) for rows in run.rows.values() for row in rows)
    assert set(run.rows) == set(range(1, STEPS + 1)) and set(trained.values()) == {1}
    for rows in run.rows.values():
        assert len(rows) == BATCH * SAMPLES and len({row["group"] for row in rows}) == BATCH


def test_tokens_are_at_most_two_updates_old_and_some_episodes_span_an_update(run: Run):
    staleness, mixed = [], 0
    for step, rows in run.rows.items():
        for row in rows:
            versions = [version for version in row["versions"] if version is not None]
            staleness += [step - 1 - version for version in versions]
            mixed += len(set(versions)) > 1
            assert versions == sorted(versions)
            assert [version is not None for version in row["versions"]] == [turn >= 0 for turn in row["turns"]]
    assert min(staleness) == 0 and 0 < max(staleness) <= 2 and mixed > 0
    for step, values in run.metrics.items():
        assert values["staleness/max"] <= 2, step


def test_log_probs_are_those_of_the_version_that_sampled_the_token(run: Run):
    """Engine and trainer agree in float32 on tokens of the present weights, and differ on older ones."""
    present = [values["staleness/0/probs_diff"] for values in run.metrics.values() if "staleness/0/tokens" in values]
    older = [values["staleness/1/probs_diff"] for values in run.metrics.values() if "staleness/1/tokens" in values]
    assert max(present) < 1e-3 < 10 * max(older)
    assert max(older) > 3 * max(present)


def test_an_episode_has_the_turn_limit_of_the_step_that_dispatched_it(run: Run):
    trained = [record for record in run.records if record["purpose"] == "train"]
    assert {(record["step"] <= 3, record["max_turns"]) for record in trained} == {(True, 4), (False, 8)}


def test_a_run_that_was_stopped_twice_trains_once_on_every_task_of_its_order(run: Run):
    tasks = {record["group"]: record["task"] for record in run.records if record["purpose"] == "train"}
    ids = [item.id for item in WaitingEnv().tasks("train")]
    order = uninterrupted_tasks(ids, 1, STEPS * BATCH)
    assert Counter(tasks[group] for group in run.trained) == Counter(task for (task,) in order.values())


def test_groups_in_flight_at_a_stop_are_played_again_as_prompts_of_the_step_that_resumes(run: Run):
    """A group that was dispatched before the checkpoint is abandoned; the step that resumes dispatches one in place."""
    abandoned = read_abandoned(run.folder)
    assert abandoned and abandoned.isdisjoint(run.trained)
    recorded = {record["group"] for record in run.records if record["purpose"] == "train"}
    assert recorded - run.trained <= abandoned, "every recorded group is trained on or abandoned"
    dispatched = Counter(int(group[:7]) for group in run.trained)
    earlier = 0
    for step in run.stopped_after:
        again = sum(earlier < int(group[:7]) <= step for group in abandoned)
        waiting = sum(int(group[:7]) <= step for group in run.trained) + again - step * BATCH
        new = min(BATCH, (STEPS - step) * BATCH - waiting)
        assert (waiting, dispatched[step + 1]) == (AHEAD, again + new), (step, dispatched)
        earlier = step


def test_every_step_is_validated_unless_the_run_stopped_after_it(run: Run):
    """The records do not tell which weights played a validation."""
    validated = {record["step"] for record in run.records if record["purpose"] == "validation"}
    assert validated >= set(range(1, STEPS + 1)) - set(run.stopped_after)
