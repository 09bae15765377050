"""The whole stack on CPU with a tiny random model: killed, resumed and interrupted, checked from outside.

Two starts of the trainer serve all tests of this file; each takes a minute or two. test_every_environment.py has a run
that ends by itself.
"""

import json
import os
import signal
import subprocess
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.models import write_model
from tests.support.training_runs import (
    command_line,
    last_step,
    marked_processes,
    run_environment,
    tasks_by_step,
    uninterrupted_tasks,
    wait_for_end,
)
from verl_agent.evaluation.recorded_play import play_folder, read_play
from verl_agent.models.checkpoints import find_damage
from verl_agent.runs.processes import shared_memory
from verl_agent.trace.metrics_log import read_metrics
from verl_agent.trace.record import EpisodeRecord, to_episode
from verl_agent.trace.record_files import read_records

STEPS, TASKS, SAMPLES = 4, 2, 4

FLAKY = """
import os
import pathlib
import random
import signal
import time

from env_adapters.guess_number.adapter import GuessNumber


class Flaky(GuessNumber):
    async def reset(self, item):
        messages = await super().reset(item)
        if item.id == "12:3":  # in step 2
            messages[-1]["content"] += " Think about it." * 200
        return messages

    async def step(self, action):
        here = pathlib.Path(__file__).parent
        try:  # once, and not while the checks before the run play
            (here / ("killed" if (here.parent / "run/episodes").is_dir() else "none/killed")).touch(exist_ok=False)
        except OSError:
            pass
        else:  # the whole host with all its sessions
            os.kill(os.getpid(), signal.SIGKILL)
        luck = random.random()
        if luck < 0.1:
            raise ConnectionError("the site is down")
        if luck < 0.13:
            time.sleep(4)
        return await super().step(action)

    def tasks(self, split):
        return [type(item)("flaky", item.id, item.data) for item in super().tasks(split)]
"""

RECIPE = """
defaults: [agent_grpo, cpu, _self_]
env:
  name: flaky
  train_tasks: small_train
  eval_tasks: small_test
  options: {tolerant: true}
  timeout_s: 2
  retries: 2
  max_env_error_rate: 0.9
agent: {name: raw, context: {keep: last, turns: 1}}
horizon: {max_turns: [2, 3], steps_per_stage: 2}
episode: {max_tokens_per_turn: 4, on_truncated_turn: play}
data: {train_batch_size: 2, max_prompt_length: 128, max_response_length: 128}
algorithm: {rollout_correction: {bypass_mode: false}}
actor_rollout_ref:
  actor: {use_kl_loss: false, entropy_coeff: -1.0, optim: {lr: 3.0e-2}}
  rollout: {n: 4, max_num_seqs: 16}
trainer: {total_training_steps: 9, save_freq: 1, experiment_name: tiny}
"""


@dataclass(frozen=True)
class Interrupted:
    """State and output of a run after Ctrl-C."""

    after: int
    status: int
    output: str
    survivors: list[str]
    memory: set[str]


@dataclass(frozen=True)
class Run:
    """Results of a run that was killed once and interrupted once, up to step `STEPS`."""

    folder: Path
    killed_after: int
    interrupted: Interrupted
    metrics: dict[int, dict[str, float]]
    records: Sequence[EpisodeRecord]


def write_package(folder: Path) -> Path:
    """Another installed package: its environment raises in a tenth of its calls, hangs in some, and dies once.

    One of its tasks has a prompt that is too long.
    """
    metadata = folder / "flaky_env-1.0.dist-info"
    metadata.mkdir(parents=True)
    metadata.joinpath("METADATA").write_text("Metadata-Version: 2.1\nName: flaky-env\nVersion: 1.0\n")
    metadata.joinpath("entry_points.txt").write_text("[verl_agent.envs]\nflaky = flaky_env:Flaky\n")
    folder.joinpath("flaky_env.py").write_text(FLAKY)
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Train, kill with SIGKILL once a step is saved; resume, and press Ctrl-C once step `STEPS` is saved."""
    root = tmp_path_factory.mktemp("training")
    recipes, folder = root / "recipes", root / "run"
    recipes.mkdir()
    recipes.joinpath("tiny.yaml").write_text(RECIPE)
    overrides = [f"actor_rollout_ref.model.path={write_model(root / 'model')}", f"trainer.default_local_dir={folder}"]
    command = command_line("train", recipes, "tiny", *overrides)
    environment = run_environment(root, write_package(root / "site"))

    first = start_until(command, environment, folder, step=1)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    killed_after = last_step(folder)
    wait_for_end(root)

    interrupted = interrupt(start_until(command, environment, folder, step=STEPS), folder, root)
    metrics = read_metrics(sorted(folder.glob("metrics/*.jsonl")))
    return Run(
        folder,
        killed_after,
        interrupted,
        {step: values for step, values in metrics.items() if step <= STEPS},
        [record for record in read_records(folder / "episodes") if record["step"] <= STEPS],
    )


def start_until(command: list[str], environment: dict[str, str], folder: Path, step: int) -> "subprocess.Popen[str]":
    """Start the trainer in a process group, as a terminal does, and wait until `step` is saved and logged."""
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    give_up = time.monotonic() + 600
    while not is_saved(folder, step):
        assert process.poll() is None and time.monotonic() < give_up, process.communicate()[0]
        time.sleep(0.5)
    return process


def is_saved(folder: Path, step: int) -> bool:
    """Return True if `step` is logged, and a checkpoint is whole: its manifest is written last."""
    last, logged = last_step(folder), read_metrics(sorted(folder.glob("metrics/*.jsonl")))
    return last >= step and step in logged and not find_damage(folder / f"global_step_{last}")


def interrupt(process: "subprocess.Popen[str]", folder: Path, mark: Path) -> Interrupted:
    """Press Ctrl-C: every process of the terminal's foreground group gets SIGINT."""
    held = shared_memory(marked_processes(mark))
    os.killpg(process.pid, signal.SIGINT)
    output = process.communicate(timeout=120)[0]
    left = {path.name for path in held if path.exists()}
    return Interrupted(last_step(folder), process.returncode, output, wait_for_end(mark, timeout_s=5), left)


pytestmark = pytest.mark.timeout(1800)


def test_ctrl_c_ends_everything_and_prints_how_to_resume(run: Run):
    stopped = run.interrupted
    assert (stopped.status, stopped.survivors, stopped.memory) == (130, [], set())
    assert f"Run the same command again to resume after step {stopped.after}." in stopped.output
    assert "Traceback" not in stopped.output
    assert last_step(run.folder) == stopped.after >= STEPS
    assert find_damage(run.folder / f"global_step_{stopped.after}") == ""


def test_a_killed_run_resumes_and_loses_no_step(run: Run):
    assert sorted(run.metrics) == list(range(1, STEPS + 1))
    firsts = [json.loads(path.open().readline())["step"] for path in sorted(run.folder.glob("metrics/*.jsonl"))]
    assert firsts == [1, run.killed_after + 1]


def test_a_run_records_the_settings_of_its_play(run: Run):
    play = read_play(play_folder(next(run.folder.glob("episodes/*.jsonl"))))
    assert [*play.envs] == ["flaky"] and play.train == {"temperature": 1.0, "top_p": 1.0}
    assert Path(play.tokenizer).samefile(play.model["path"])


def test_the_engine_has_the_weights_that_were_trained(run: Run):
    """On the tokens of each step, which the engine wrote with the weights of the last sync.

    The loss lowers the entropy, so that an engine left behind would give those tokens other probabilities.
    """
    gaps = [run.metrics[step]["training/rollout_probs_diff_mean"] for step in run.metrics]
    correlations = [run.metrics[step]["training/rollout_actor_probs_pearson_corr"] for step in run.metrics]
    entropies = [run.metrics[step]["actor/entropy"] for step in sorted(run.metrics)]
    assert max(gaps) <= 0.01
    assert min(correlations) >= 0.95, "probabilities of an untrained model are tiny, so a small gap alone proves little"
    assert entropies[0] - entropies[-1] > 0.5


def test_the_horizon_follows_the_step_through_the_restart(run: Run):
    played = {(record["step"], record["max_turns"]) for record in run.records}
    assert played == {(1, 2), (2, 2), (3, 3), (4, 3)}


def test_the_items_are_those_of_a_run_that_was_never_stopped(run: Run):
    from verl_agent.envs.registry import make_env
    from verl_agent.envs.tasks import select_tasks

    ids = [item.id for item in select_tasks(make_env("guess_number"), "small_train")]
    assert tasks_by_step(run.records) == uninterrupted_tasks(ids, TASKS, STEPS)


def steps_played_once(run: Run) -> set[int]:
    """Return the steps that the kill cannot have recorded twice."""
    return set(run.metrics) - {run.killed_after + 1}


def test_failing_environments_are_replayed_and_lost_episodes_left_out(run: Run):
    replayed = [record for record in run.records if record.get("replays")]
    assert any(record["stop"] not in ("env_error", "overlong_prompt") for record in replayed)
    assert any("the site is down" in error for record in replayed for error in record["replays"])
    replays = Counter()
    for record in replayed:
        replays[record["step"]] += len(record["replays"])
    failed = Counter(record["step"] for record in run.records if record["stop"] == "env_error")
    valid = Counter(record["step"] for record in run.records if to_episode(record).valid)
    for step in steps_played_once(run):
        metrics, lost = run.metrics[step], TASKS * SAMPLES - valid[step]
        assert metrics["env/replays"] == replays[step]
        assert metrics["env/errors"] == failed[step] - metrics["env/retries"]
        assert metrics["stop/env_error"] + metrics["stop/overlong_prompt"] == lost / (TASKS * SAMPLES)


def test_an_overlong_prompt_is_recorded_and_left_out(run: Run):
    """The check at start finds the task, but one task of all is below env.max_env_error_rate."""
    overlong = [record for record in run.records if record["stop"] == "overlong_prompt"]
    assert {(record["step"], record["task"], record["attempt"]) for record in overlong} == {(2, "12:3", 1)}
    assert all(not record["turns"] and "data.max_prompt_length=128" in record["error"] for record in overlong)
    assert [step for step, metrics in run.metrics.items() if metrics["stop/overlong_prompt"] > 0] == [2]
    assert run.metrics[2]["stop/overlong_prompt"] == SAMPLES / (TASKS * SAMPLES)
    assert "1 exceed them and are not played (data.overlong_prompt)" in run.interrupted.output


def test_a_host_that_is_killed_costs_no_step_and_its_episodes_continue(run: Run):
    errors = {error: record["step"] for record in run.records for error in record.get("replays", ())}
    assert 1 in {step for error, step in errors.items() if "host process" in error}


def test_samples_of_a_group_differ(run: Run):
    """Each request has its own seed, of which the number of the sample is a part."""
    groups = defaultdict(set)
    for record in run.records:
        if record["turns"]:
            groups[record["step"], record["group"]].add(record["turns"][0]["reply"])
    assert any(len(replies) > 1 for replies in groups.values())
