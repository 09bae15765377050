"""Training runs in processes of their own: start, wait for a checkpoint, find and end leftover processes."""

import os
import random
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

from tests import ROOT
from tests.support.models import write_byte_model, write_byte_tokenizer, write_critic, write_qwen3_moe
from tests.support.waiting import wait_until
from verl_agent.envs.registry import make_env
from verl_agent.envs.tasks import select_tasks
from verl_agent.trace.metrics_log import read_metrics
from verl_agent.trace.record import EpisodeRecord
from verl_agent.trace.record_files import read_records

MARK = "VERL_AGENT_TEST_RUN"
"""Environment variable that all processes of a run under test inherit."""


def command_line(command: str, folder: Path, recipe: str, *overrides: str) -> list[str]:
    """Return the command line of a `verl_agent.commands` module with a recipe."""
    module = f"verl_agent.commands.{command}"
    return [sys.executable, "-m", module, "--config-dir", str(folder), "--config-name", recipe, *overrides]


def run_environment(mark: Path, *packages: Path) -> dict[str, str]:
    """Return the environment variables of a run on the CPU."""
    path = os.pathsep.join(str(folder) for folder in (*packages, ROOT))
    return {**os.environ, MARK: str(mark), "PYTHONPATH": path, "VERL_PLATFORM": "cpu"}


RECIPE = """
defaults: [agent_grpo, cpu, _self_]
env: {name: guess_number, train_tasks: small_train, eval_tasks: small_test, options: {tolerant: true}}
agent: {name: raw}
horizon: {max_turns: [2]}
episode: {max_tokens_per_turn: 8, on_truncated_turn: play}  # a number by chance now and then: groups differ
credit: {invalid_action_cost: 0.1}
data: {train_batch_size: 4, max_prompt_length: 256, max_response_length: 256}
actor_rollout_ref:
  actor:
    use_kl_loss: false
    ppo_mini_batch_size: 2
    optim: {lr: 1.0e-3}
    fsdp_config: {mixed_precision: {param_dtype: fp32}}
  rollout: {n: 4, max_num_seqs: 16, dtype: float32}
trainer: {total_training_steps: 2, save_freq: -1, test_freq: -1, val_before_train: false}
"""
"""Two steps of a tiny model in float32, with mini-batches smaller than the batch."""
PPO = [
    *("+overlay/algorithm=ppo", "offload=false", "critic.optim.lr=1.0e-3", "critic.ppo_mini_batch_size=2"),
    *("critic.ppo_micro_batch_size_per_gpu=4", "critic.fsdp.mixed_precision.param_dtype=fp32"),
]
"""Overrides for a critic."""
KILLED_STEPS = 3
"""Steps of a run of `train_killed`."""


def train_to_end(root: Path, *overrides: str, packages: Sequence[Path] = ()) -> Path:
    """Run `RECIPE` to its end, with further folders on the path, and return the run folder; no process is left."""
    run_to_end(root, prepare(root, overrides), *packages)
    return root / "run"


def train_killed(root: Path, *overrides: str) -> Path:
    """Run `RECIPE` for `KILLED_STEPS` steps, killed once after the first and started again; return the run folder."""
    saved = ["trainer.save_freq=1", f"trainer.total_training_steps={KILLED_STEPS}"]
    command = prepare(root, [*overrides, *saved])
    kill_after_checkpoint(root, command, 1)
    run_to_end(root, command)
    return root / "run"


def prepare(root: Path, overrides: Sequence[str]) -> list[str]:
    """Write the recipe and the models of a run and return its command line."""
    root.mkdir(exist_ok=True)
    root.joinpath("recipe.yaml").write_text(RECIPE)
    write_byte_model(root / "model", ["Guess a whole number from 1 to 12. Higher. Lower."], vocabulary=300)
    paths = [f"actor_rollout_ref.model.path={root / 'model'}", f"trainer.default_local_dir={root / 'run'}"]
    if any(override.startswith("critic.") for override in overrides):
        paths.append(f"critic.model.path={write_critic(root / 'critic', root / 'model')}")
    return command_line("train", root, "recipe", *overrides, *paths)


def run_to_end(root: Path, command: Sequence[str], *packages: Path) -> None:
    """Run a command, which must succeed and leave no process; `root` marks its processes."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    try:
        ended = subprocess.run(command, env=run_environment(root, *packages), text=True, timeout=1500, **pipes)
    finally:
        remaining = wait_for_end(root)
    assert remaining == []
    assert ended.returncode == 0, ended.stdout[-20000:]


def kill_after_checkpoint(root: Path, command: Sequence[str], step: int) -> int:
    """Start a training command and kill it with SIGKILL at a random moment after a checkpoint.

    The moment is just after the checkpoint, within the next step, or while the next checkpoint is written.
    """
    run, moment, share = root / "run", random.choice(["checkpoint", "step", "save"]), random.random()
    sys.stdout.write(f"\nkilled at {share:.2f} of the {moment} after step {step}\n")
    with (root / "killed.log").open("w") as output:
        process = subprocess.Popen(command, env=run_environment(root), stdout=output, stderr=subprocess.STDOUT)
        try:
            _wait(process, root, lambda: last_step(run) >= step)
            seconds = 0.5
            if moment == "step":
                _wait(process, root, lambda: step in read_metrics(sorted(run.glob("metrics/*.jsonl"))))
                seconds = read_metrics(sorted(run.glob("metrics/*.jsonl")))[step]["timing_s/step"]
            elif moment == "save":
                _wait(process, root, (run / f"global_step_{step + 1}").exists)
            until = time.monotonic() + share * seconds
            while time.monotonic() < until and (moment == "save" or not (run / f"global_step_{step + 1}").exists()):
                time.sleep(0.01)  # the first step is longer than the next ones, which the run must not end
        finally:
            process.kill()
            process.wait()
            reached = last_step(run)
            wait_for_end(root)
    return reached


def _wait(process: subprocess.Popen[bytes], root: Path, condition: Callable[[], bool]) -> None:
    wait_until(condition, 1500, lambda: (root / "killed.log").read_text()[-20000:], process)


def check_killed_run(run: Path) -> None:
    """Check that a run of `train_killed` trained each step on the tasks of a run without interruption."""
    ids = [item.id for item in select_tasks(make_env("guess_number"), "small_train")]
    trained = [record for record in read_records(run) if record["purpose"] == "train"]
    assert tasks_by_step(trained) == uninterrupted_tasks(ids, 4, KILLED_STEPS)
    assert last_step(run) == KILLED_STEPS
    logs = sorted(run.glob("metrics/*.jsonl"))  # one for each start
    begun = min(step for step in read_metrics(logs[-1:]) if step)
    # A kill between checkpoint and log loses the metrics of one step.
    assert begun > 1 and set(range(1, KILLED_STEPS + 1)) - set(read_metrics(logs)) <= {begun - 1}


def last_step(folder: Path) -> int:
    """Return the step of the latest complete checkpoint, 0 before the first one."""
    tracker = folder / "latest_checkpointed_iteration.txt"
    return int(tracker.read_text() or 0) if tracker.is_file() else 0


def marked_processes(mark: Path) -> list[psutil.Process]:
    """Return the running processes of a run."""
    marked = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == str(mark) and process.status() != psutil.STATUS_ZOMBIE:
                marked.append(process)
        except (psutil.AccessDenied, psutil.NoSuchProcess):
            continue
    return marked


def wait_for_end(mark: Path, timeout_s: float = 60) -> list[str]:
    """Wait until all processes of a run have ended; kill the others and return their command lines."""
    deadline = time.monotonic() + timeout_s
    while marked_processes(mark) and time.monotonic() < deadline:
        time.sleep(1)
    remaining = marked_processes(mark)
    lines = [" ".join(process.cmdline())[:200] for process in remaining]
    for process in remaining:
        process.kill()
    return lines


def running_after(processes: Sequence[psutil.Process], timeout_s: float) -> list[psutil.Process]:
    """Wait until the processes have ended and return those that still run; one that waits to be reaped has ended."""
    deadline = time.monotonic() + timeout_s
    while (running := [one for one in processes if _runs(one)]) and time.monotonic() < deadline:
        time.sleep(0.1)
    return running


def _runs(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def tasks_by_step(records: Sequence[EpisodeRecord]) -> dict[int, set[str]]:
    """Return the ids of the tasks that were played in each step."""
    tasks = defaultdict(set)
    for record in records:
        tasks[record["step"]].add(record["task"])
    return dict(tasks)


def uninterrupted_tasks(ids: list[str], batch_size: int, steps: int) -> dict[int, set[str]]:
    """Return the ids of the tasks of each step in a run without interruption, with `data.seed=1`."""
    from torch import Generator
    from torchdata.stateful_dataloader import StatefulDataLoader
    from torchdata.stateful_dataloader.sampler import RandomSampler

    order = RandomSampler(ids, generator=Generator().manual_seed(1))
    batches = iter(StatefulDataLoader(ids, batch_size=batch_size, sampler=order, drop_last=True))
    return {step: set(next(batches)) for step in range(1, steps + 1)}


def train_experts(root: Path, *overrides: str) -> dict[int, float]:
    """Train a random Qwen3-MoE for three steps in float32.

    Returns:
        Mean difference of probabilities between engine and trainer, by step.
    """
    options = [*overrides, "algorithm.rollout_correction.bypass_mode=false", "trainer.total_training_steps=3"]
    command = prepare(root, options)
    texts = ["Guess a whole number from 1 to 12. Higher. Lower."]
    write_qwen3_moe(root / "model", write_byte_tokenizer(root / "model", texts, vocabulary=300), layers=2)
    run_to_end(root, command)
    logged = read_metrics(sorted((root / "run").glob("metrics/*.jsonl")))
    assert all(row["actor/grad_norm"] > 0 for step, row in logged.items() if step)
    return {step: row["training/rollout_probs_diff_mean"] for step, row in logged.items() if step}
