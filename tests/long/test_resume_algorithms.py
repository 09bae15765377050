"""Tests that every online algorithm, killed at a random moment, resumes from the saved weights and moments.

Takes minutes on two cores for each algorithm. The model is small and random.
"""

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.support.models import write_byte_model
from tests.support.training_runs import (
    PPO,
    command_line,
    kill_after_checkpoint,
    run_to_end,
    tasks_by_step,
    uninterrupted_tasks,
)
from verl_agent.envs.registry import make_env
from verl_agent.envs.tasks import select_tasks
from verl_agent.trace.metrics_log import read_metrics
from verl_agent.trace.record import EpisodeRecord
from verl_agent.trace.record_files import read_records

STEPS, TASKS = 4, 2
ALGORITHMS = {
    "ppo": PPO,
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
    """Folder, metrics and records of a run that was killed once."""

    algorithm: str
    folder: Path
    killed_after: int
    metrics: dict[int, dict[str, float]]
    records: list[EpisodeRecord]


@pytest.fixture(scope="module", params=ALGORITHMS)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Train, kill with SIGKILL after the checkpoint of a random step, and run the same command to the end."""
    root = tmp_path_factory.mktemp(request.param)
    folder, recipes = root / "run", root / "recipes"
    recipes.mkdir()
    recipes.joinpath("killed.yaml").write_text(RECIPE)
    model = write_byte_model(root / "model", ["Guess a whole number from 1 to 12. Higher. Lower."], vocabulary=300)
    overrides = [f"trainer.default_local_dir={folder}", f"actor_rollout_ref.model.path={model}"]
    command = command_line("train", recipes, "killed", *ALGORITHMS[request.param], *overrides)
    killed_after = kill_after_checkpoint(root, command, random.randint(1, STEPS - 2))
    run_to_end(root, command)
    metrics = read_metrics(sorted(folder.glob("metrics/*.jsonl")))
    return Run(request.param, folder, killed_after, metrics, list(read_records(folder / "episodes")))


def parameters(checkpoint: Path) -> Iterator[tuple[Any, dict[str, Any], dict[str, Any]]]:
    """Yield weight, moments and settings of each parameter in a checkpoint of one process."""
    import torch

    weights, optimizer = (
        torch.load(next(checkpoint.glob(f"{kind}_world_size_1_rank_0.pt")), weights_only=False)
        for kind in ("model", "optim")
    )
    tensors = [weight for name, weight in weights.items() if name != "lm_head.weight"]  # tied
    (settings,) = optimizer["param_groups"]
    assert len(tensors) == len(settings["params"])
    for weight, number in zip(tensors, settings["params"], strict=True):
        yield weight, optimizer["state"][number], settings


def test_one_step_of_adam_leads_from_each_checkpoint_to_the_next(run: Run):
    """After the kill too: from other weights or moments than the saved ones no gradient leads to the next."""
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


def test_tasks_are_those_of_an_uninterrupted_run(run: Run):
    """DAPO replaces uniform groups, so the number of tasks of a step varies; their order does not."""
    ids = [item.id for item in select_tasks(make_env("guess_number"), "small_train")]
    if run.algorithm != "dapo":
        assert tasks_by_step(run.records) == uninterrupted_tasks(ids, TASKS, STEPS)
        return
    first, second = (
        tasks_by_step(list(read_records(start))) for start in sorted((run.folder / "episodes").glob("*.jsonl"))
    )
    order = [task for tasks in uninterrupted_tasks(ids, 1, len(ids)).values() for task in tasks]
    begin = 0
    for step in range(1, STEPS + 1):
        tasks = (first if step <= run.killed_after else second)[step]
        assert tasks == set(order[begin : begin + len(tasks)]), step
        begin += len(tasks)


def test_dapo_replaces_uniform_groups_to_fill_a_batch(run: Run):
    if run.algorithm != "dapo":
        pytest.skip("a test of DAPO")
    returns: dict[tuple[int, str], set[float]] = {}
    for record in run.records:
        returns.setdefault((record["step"], record["group"]), set()).add(record["shaped_return"])
    assert any(len(group) == 1 for group in returns.values()), "no group was uniform, so the test proves nothing"
    for step, values in run.metrics.items():
        assert values["episode/uniform_groups"] == 0
        assert sum(len(group) > 1 for (played_in, _), group in returns.items() if played_in == step) >= TASKS


def test_every_step_is_trained_and_the_horizon_follows_the_step(run: Run):
    """A kill between checkpoint and log loses the metrics of one step, never the step."""
    assert set(range(1, STEPS + 1)) - set(run.metrics) <= {run.killed_after}
    resumed = max(run.folder.glob("metrics/*.jsonl"))
    assert json.loads(resumed.open().readline())["step"] == run.killed_after + 1
    assert {(record["step"], record["max_turns"]) for record in run.records} == {(1, 1), (2, 1), (3, 2), (4, 2)}
    changed = {step: values["actor/grad_norm"] > 0 for step, values in run.metrics.items()}
    assert changed == {step: values["critic/advantages/max"] > 0 for step, values in run.metrics.items()}
    assert any(changed.values())  # a step with uniform groups only changes no weight
