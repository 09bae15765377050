"""Episodes that fail in their environment, in training: `python -m tests.bench.failing_actions [FOLDER]`.

The first table shows what GRPO teaches a tiny random model about actions that always raise: two of eight classes of
replies fail, two are right, four are wrong. The second one shows how many of the valid episodes are long if 5 % of all
steps fail by chance. Each run takes minutes; finished ones are kept in the folder.
"""

import random
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.bench.partial import register
from verl_agent.envs.base import EnvAdapter
from verl_agent.trace.record import EpisodeRecord
from verl_agent.trace.record_files import read_records
from verl_agent.types import Message, StepResult, TaskItem

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


def outcome(record: EpisodeRecord) -> str:
    """Return the outcome of an episode of `FailingActions`."""
    failed = record["stop"] in ("action_error", "env_error")
    return "fails" if failed else "right" if record["success"] else "wrong"


def main(folder: Path) -> None:
    """Run what has not ended, and print both tables."""
    console, results = Console(), {name: play(folder, name) for name in RUNS}
    columns = ("fails", "right", "fails, of the others")
    table = Table("steps", *(f"{name}: {column}" for name in ("count", "drop") for column in columns))
    for first in range(1, STEPS, WINDOW):
        cells = []
        for name in ("count", "drop"):
            found = [outcome(record) for record in results[name] if first <= record["step"] < first + WINDOW]
            fails, right = (found.count(kind) / len(found) for kind in ("fails", "right"))
            cells += [f"{fails:.3f}", f"{right:.3f}", f"{fails / (1 - right):.3f}"]
        table.add_row(f"{first} to {first + WINDOW - 1}", *cells)
    console.print(table)
    table = Table("5 % of steps fail", "valid", "long ones of the valid")
    for name in ("replayed", "begun anew"):
        last = {(record["group"], record["sample"]): record for record in results[name]}.values()
        valid = [record for record in last if record["stop"] != "env_error"]
        long = sum(length(record["task"]) == 20 for record in valid)
        drawn = sum(length(record["task"]) == 20 for record in last) / len(last)
        table.add_row(name, f"{len(valid) / len(last):.3f}", f"{long / len(valid):.3f} (drawn: {drawn:.3f})")
    console.print(table)


if __name__ == "__main__":
    main(Path(sys.argv[1] if sys.argv[1:] else "runs/bench_failing_actions").resolve())
