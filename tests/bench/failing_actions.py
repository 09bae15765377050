"""Actions that always fail in their environment: `python -m tests.bench.failing_actions [--train FOLDER]`.

Of eight kinds of actions two fail, two are right and four are wrong. The table shows their shares in the policy, where
failures count, are left out, or are drawn anew. Without `--train`, GRPO moves a softmax policy over eight actions and
the episodes pass through the real loop: seconds. With it, verl trains a tiny random model, and a second table shows
how many of the valid episodes are long if 5 % of all steps fail by chance. Finished runs are kept.
"""

import argparse
import asyncio
import random
import subprocess
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from tests.bench.partial import register
from tests.support.attempts import play_until_valid
from tests.support.fakes import plain
from verl_agent.envs.base import EnvAdapter
from verl_agent.rollout.episode import EpisodeLimits
from verl_agent.trace.record import EpisodeRecord
from verl_agent.trace.record_files import read_records
from verl_agent.types import Message, Reply, StepResult, StopReason, TaskItem

STEPS, WINDOW, ERRORS = 15, 3, 0.05
RECIPE = """
defaults: [agent_grpo, cpu, _self_]
env: {dev_tasks: null, max_env_error_rate: 1}
agent: {name: raw}
horizon: {max_turns: [20]}
episode: {max_tokens_per_turn: 1, on_truncated_turn: play}
data: {train_batch_size: 8, max_prompt_length: 64, max_response_length: 960}
actor_rollout_ref:
  actor: {use_kl_loss: false, ppo_mini_batch_size: 4, optim: {lr: 2.0e-3}}
  rollout: {n: 8, max_num_seqs: 64}
trainer: {save_freq: 5, max_actor_ckpt_to_keep: 1, test_freq: -1, val_before_train: false}
"""
RUNS: Mapping[str, Sequence[str]] = {
    "count": ("env.name=FailingActions", "env.on_action_error=count", f"trainer.total_training_steps={STEPS}"),
    "drop": ("env.name=FailingActions", "env.on_action_error=drop", f"trainer.total_training_steps={STEPS}"),
    "replayed": ("env.name=FailingSteps", "trainer.total_training_steps=2"),
    "begun anew": ("env.name=FailingStepsAnew", "trainer.total_training_steps=2"),
}
"""Overrides of each run."""


class FailingActions(EnvAdapter):
    """Environment of one turn, in which the class of the reply decides: it fails, is right or is wrong."""

    def tasks(self, split: str) -> Sequence[TaskItem]:
        return [TaskItem("failing", f"{split}-{number}") for number in range(4096 if split == "train" else 4)]

    async def reset(self, item: TaskItem) -> list[Message]:
        return [{"role": "user", "content": "Begin."}]

    async def step(self, action: str) -> StepResult:
        kind = (sum(action.encode()) + 3) % 8  # half of the tokens are no UTF-8: they are wrong
        if kind < 2:
            raise ValueError("the environment does not expect this action")
        return StepResult("Go on.", reward=float(kind < 4), terminated=True)


class FailingSteps(FailingActions):
    """Environment of 5 or 20 turns, half of each, in which steps fail by chance."""

    async def reset(self, item: TaskItem) -> list[Message]:
        self.left = length(item.id)
        return await super().reset(item)

    async def step(self, action: str) -> StepResult:
        if random.random() < ERRORS:
            raise ConnectionError("a service of the environment is down")
        self.left -= 1
        return StepResult("Go on.", reward=float(not self.left), terminated=not self.left)


class FailingStepsAnew(FailingSteps):
    """The same for an adapter that cannot be replayed."""

    deterministic = False


def length(task: str) -> int:
    """Return the number of turns of a task of `FailingSteps`."""
    return 20 if int(task.rpartition("-")[2]) % 2 else 5


def play(folder: Path, name: str) -> list[EpisodeRecord]:
    """Return the records of a run, which is made if the folder does not have it."""
    from tests.support.models import write_byte_model  # these import torch
    from tests.support.training_runs import command_line, run_environment, wait_for_end

    model, run, done = folder / "model", folder / name.replace(" ", "_"), folder / f"{name}.done"
    if not done.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "recipe.yaml").write_text(RECIPE)
        write_byte_model(model, ["Begin. Go on."], vocabulary=300)
        paths = [f"actor_rollout_ref.model.path={model}", f"trainer.default_local_dir={run}"]
        command = command_line("train", folder, "recipe", *RUNS[name], *paths)
        classes = ("FailingActions", "FailingSteps", "FailingStepsAnew")
        package = register(folder, **{one: f"tests.bench.failing_actions:{one}" for one in classes})
        subprocess.run(command, env=run_environment(folder, package), check=True)
        wait_for_end(folder)
        done.touch()
    return list(read_records(run / "episodes"))


def outcome(stop: str, success: bool) -> str:
    """Return the kind of the last action of an episode of `FailingActions`."""
    failed = stop in (StopReason.ACTION_ERROR, StopReason.ENV_ERROR)
    return "fails" if failed else "right" if success else "wrong"


class Anew(FailingActions):
    """The environment for an adapter that cannot be replayed, so that an episode that fails begins anew."""

    deterministic = False


class Softmax:
    """Policy with a probability for each of eight actions, one of each kind in turn."""

    def __init__(self, logits_A: np.ndarray, draws: np.random.Generator) -> None:
        self.probabilities_A = np.exp(logits_A) / np.exp(logits_A).sum()
        self._draws = draws

    async def reply(self, messages: Sequence[Message]) -> Reply:
        self.action = int(self._draws.choice(8, p=self.probabilities_A))
        return Reply("efghabcd"[self.action])


def simulate(mode: str, seed: int) -> list[list[str]]:
    """Return the outcomes of each step of GRPO (8 groups of 8 episodes) on a softmax policy.

    Args:
        mode: `count` or `drop` of `env.on_action_error`, or `anew` for an environment that cannot be replayed.
        seed: seed of the draws.
    """
    env, draws, logits_A, steps = (
        Anew if mode == "anew" else FailingActions,
        np.random.default_rng(seed),
        np.zeros(8),
        [],
    )
    limits = EpisodeLimits(1, None, retries=2, on_action_error="drop" if mode == "drop" else "count")
    item = env().tasks("test")[0]
    for _ in range(STEPS):
        policy, change_A, outcomes = Softmax(logits_A, draws), np.zeros(8), list[str]()
        for _ in range(8):
            valid: list[tuple[int, float]] = []
            for _ in range(8):
                attempts = asyncio.run(play_until_valid(item, env, plain, lambda policy=policy: policy, limits))
                outcomes += [outcome(one.stop, one.success) for one in attempts]
                valid += [(policy.action, attempts[-1].reward)] if attempts[-1].valid else []
            returns = np.array([reward for _, reward in valid])
            for (action, _), advantage in zip(valid, (returns - returns.mean()) / (returns.std() + 1e-6), strict=True):
                change_A += advantage * (np.eye(8)[action] - policy.probabilities_A)
        logits_A = logits_A + 0.5 * change_A / 64
        steps.append(outcomes)
    return steps


def show(console: Console, results: Mapping[str, Sequence[Sequence[str]]]) -> None:
    """Print the share of failing actions of all, and of those that are not right."""
    columns = ("fails", "of bad")
    table = Table("steps", *(f"{name}: {column}" for name in results for column in columns))
    for first in range(0, STEPS, WINDOW):
        cells = []
        for steps in results.values():
            found = [one for outcomes in steps[first : first + WINDOW] for one in outcomes]
            fails, right = (found.count(kind) / len(found) for kind in ("fails", "right"))
            cells += [f"{fails:.3f}", f"{fails / (1 - right):.3f}"]
        table.add_row(f"{first + 1} to {first + WINDOW}", *cells)
    console.print(table)


def train(folder: Path, console: Console) -> None:
    """Run what has not ended, and print both tables."""
    records = {name: play(folder, name) for name in RUNS}
    results = {
        name: [
            [outcome(one["stop"], one["success"]) for one in records[name] if one["step"] == step]
            for step in range(1, STEPS + 1)
        ]
        for name in ("count", "drop")
    }
    show(console, results)
    table = Table("5 % of steps fail", "valid", "long ones of the valid")
    for name in ("replayed", "begun anew"):
        last = {(record["group"], record["sample"]): record for record in records[name]}.values()
        valid = [record for record in last if record["stop"] != "env_error"]
        long = sum(length(record["task"]) == 20 for record in valid)
        drawn = sum(length(record["task"]) == 20 for record in last) / len(last)
        table.add_row(name, f"{len(valid) / len(last):.3f}", f"{long / len(valid):.3f} (drawn: {drawn:.3f})")
    console.print(table)


def main() -> None:
    """Simulate, or train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", type=Path, help="folder of the runs with verl")
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    if options.train:
        train(options.train.resolve(), Console())
        return
    seeds = range(options.seeds)
    results = {mode: [simulate(mode, seed) for seed in seeds] for mode in ("count", "drop", "anew")}
    show(Console(), {mode: [list(chain(*step)) for step in zip(*runs, strict=True)] for mode, runs in results.items()})


if __name__ == "__main__":
    main()
