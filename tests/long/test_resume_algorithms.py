"""Each online algorithm killed at a random moment: what follows goes on from the weights and moments that were saved.

Minutes of work on two cores for each; the model is small and knows nothing.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.support.models import write_byte_model
from tests.verl.test_training import MARK, REPOSITORY, last_step, played, unstopped, wait_for_end
from verl_agent.envs.tasks import select_tasks
from verl_agent.trace.metrics_log import read_metrics
from verl_agent.trace.record import EpisodeRecord
from verl_agent.trace.record_files import read_records

STEPS, TASKS = 4, 2
ALGORITHMS = {
    "ppo": [
        "+overlay/algorithm=ppo",
        "offload=false",
        "critic.optim.lr=1.0e-3",
        "critic.ppo_micro_batch_size_per_gpu=4",
    ],
    "rloo": ["+overlay/algorithm=rloo"],
    "reinforce_pp": ["+overlay/algorithm=reinforce_pp"],
    "dapo": ["+overlay/algorithm=dapo"],
}
RECIPE = """
defaults: [agent_grpo, cpu, _self_]
env: {name: guess_number, train_tasks: small_train, eval_tasks: small_test, options: {tolerant: true}}
agent: {name: raw}
horizon: {max_turns: [1, 2], steps_per_stage: 2}
episode: {max_tokens_per_turn: 8, on_truncated_turn: play}  # a number by chance now and then: groups differ
credit: {invalid_action_cost: 0.1}
data: {train_batch_size: 2, max_prompt_length: 256, max_response_length: 256}
actor_rollout_ref:
  actor: {use_kl_loss: false, optim: {lr: 1.0e-3}}
  rollout: {n: 4, max_num_seqs: 16}
trainer:
  total_training_steps: 4
  save_freq: 1
  max_actor_ckpt_to_keep: 9
  max_critic_ckpt_to_keep: 9
  experiment_name: killed
"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


@dataclass(frozen=True)
class Run:
    """What a run that was killed once left behind; `delay` is the seconds from a checkpoint to the kill."""

    algorithm: str
    folder: Path
    delay: float
    killed_after: int
    metrics: dict[int, dict[str, float]]
    records: list[EpisodeRecord]


@pytest.fixture(scope="module", params=ALGORITHMS)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Train, kill with SIGKILL some time after a step at random is saved, and run the same command again to the end."""
    root = tmp_path_factory.mktemp(request.param)
    folder, recipes = root / "run", root / "recipes"
    recipes.mkdir()
    recipes.joinpath("killed.yaml").write_text(RECIPE)
    command = [
        sys.executable,
        "-m",
        "verl_agent.commands.train",
        "--config-dir",
        str(recipes),
        "--config-name",
        "killed",
    ]
    command += [*ALGORITHMS[request.param], f"trainer.default_local_dir={folder}"]
    model = write_byte_model(root / "model", ["Guess a whole number from 1 to 12. Higher. Lower."], vocabulary=300)
    command += [f"actor_rollout_ref.model.path={model}"]
    environment = {**os.environ, MARK: str(root), "PYTHONPATH": str(REPOSITORY), "VERL_PLATFORM": "cpu"}

    first = subprocess.Popen(command, env=environment)
    give_up = time.monotonic() + 1500
    after = random.randint(1, STEPS - 1)
    while last_step(folder) < after:
        assert first.poll() is None and time.monotonic() < give_up
        time.sleep(0.05)
    delay = random.uniform(0, 0.5)
    time.sleep(delay)
    first.send_signal(signal.SIGKILL)
    first.wait()
    killed_after = last_step(folder)
    wait_for_end(str(root))
    subprocess.run(command, env=environment, check=True, timeout=1500)
    wait_for_end(str(root))
    metrics = read_metrics(sorted(folder.glob("metrics/*.jsonl")))
    return Run(request.param, folder, delay, killed_after, metrics, list(read_records(folder / "episodes")))


def parameters(checkpoint: Path) -> Iterator[tuple[Any, dict[str, Any], dict[str, Any]]]:
    """Weight, moments and settings of each parameter in a checkpoint of one process."""
    import torch

    weights, optimizer = (
        torch.load(next(checkpoint.glob(f"{part}_world_size_1_rank_0.pt")), weights_only=False)
        for part in ("model", "optim")
    )
    tensors = [weight.to_local() for name, weight in weights.items() if name != "lm_head.weight"]  # tied
    (settings,) = optimizer["param_groups"]
    assert len(tensors) == len(settings["params"])
    for weight, number in zip(tensors, settings["params"], strict=True):
        state = optimizer["state"][number]
        yield (
            weight,
            {name: getattr(value, "to_local", lambda value=value: value)() for name, value in state.items()},
            settings,
        )


def test_one_step_of_adam_leads_from_each_checkpoint_to_the_next(run: Run):
    """Over the kill, too: from other weights or moments than the saved ones no gradient at all would lead there."""
    import torch

    models = ("actor", "critic") if run.algorithm == "ppo" else ("actor",)
    for step, model in product(range(1, STEPS), models):
        before, after = (run.folder / f"global_step_{number}" / model for number in (step, step + 1))
        for (old, was, settings), (new, now, _) in zip(parameters(before), parameters(after), strict=True):
            (first, second), lr, count = settings["betas"], settings["lr"], int(now["step"])
            assert count == int(was["step"]) + 1
            gradient = (now["exp_avg"] - first * was["exp_avg"]) / (1 - first)
            squares = second * was["exp_avg_sq"] + (1 - second) * gradient**2
            torch.testing.assert_close(now["exp_avg_sq"], squares, rtol=1e-3, atol=1e-12)
            mean, square = now["exp_avg"] / (1 - first**count), now["exp_avg_sq"] / (1 - second**count)
            expected = old * (1 - lr * settings["weight_decay"]) - lr * mean / (square.sqrt() + settings["eps"])
            torch.testing.assert_close(new, expected, rtol=0, atol=1e-6)


def test_the_items_are_those_of_a_run_that_was_never_stopped(run: Run):
    """DAPO plays more tasks where groups are alike: how many a step takes is open, but not which come next."""
    ids = [item.id for item in select_tasks("guess_number", "small_train")]
    if run.algorithm != "dapo":
        assert played(run.records) == unstopped(ids, TASKS, STEPS)
        return
    first, second = (played(list(read_records(start))) for start in sorted((run.folder / "episodes").glob("*.jsonl")))
    order = [task for tasks in unstopped(ids, 1, len(ids)).values() for task in tasks]
    begin = 0
    for step in range(1, STEPS + 1):
        tasks = (first if step <= run.killed_after else second)[step]
        assert tasks == set(order[begin : begin + len(tasks)]), step
        begin += len(tasks)


def test_dapo_learns_from_groups_that_differ(run: Run):
    """And from as many as a batch has, though others were played that were alike."""
    if run.algorithm != "dapo":
        pytest.skip("of DAPO alone")
    validation_gain: dict[tuple[int, str], set[float]] = {}
    for record in run.records:
        validation_gain.setdefault((record["step"], record["group"]), set()).add(record["shaped_return"])
    assert any(len(rewards) == 1 for rewards in validation_gain.values()), "no group was alike, so nothing was tried"
    for step, values in run.metrics.items():
        assert values["episode/uniform_groups"] == 0
        assert sum(len(rewards) > 1 for (when, _), rewards in validation_gain.items() if when == step) >= TASKS


def test_no_step_is_lost_and_the_horizon_follows_the_step(run: Run):
    """A kill between saving and logging costs the metrics of one step, never the step."""
    assert set(range(1, STEPS + 1)) - set(run.metrics) <= {run.killed_after}
    resumed = max(run.folder.glob("metrics/*.jsonl"))
    assert json.loads(resumed.open().readline())["step"] == run.killed_after + 1
    assert {(record["step"], record["max_turns"]) for record in run.records} == {(1, 1), (2, 1), (3, 2), (4, 2)}
    moved = {step: values["actor/grad_norm"] > 0 for step, values in run.metrics.items()}
    assert moved == {step: values["critic/advantages/max"] > 0 for step, values in run.metrics.items()}
    assert any(moved.values())  # not where all episodes of a group earned the same
