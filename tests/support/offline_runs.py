"""Supervised training and DPO of a tiny model on made-up episodes: recipes, and processes that run them."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests import ROOT
from tests.support.episodes import talk
from tests.support.models import write_model
from verl_agent.trace.metrics_log import read_metrics
from verl_agent.trace.record import EpisodeRecord
from verl_agent.trace.record_files import EpisodeWriter

GUESSES = ("1", "2", "3", "4", "5", "6", "7", "8")

DPO = """
defaults: [agent_dpo, cpu_sft, _self_]
env: {name: guess_number, eval_tasks: small_test}
agent: {name: raw}
preference: {records: episodes.jsonl, val_share: 0.25, beta: 0.1}
data: {train_batch_size: 2, micro_batch_size_per_gpu: 1, max_length: 96, val_files: validation}
model: {path: model}
engine: {mixed_precision: {param_dtype: float32}}
optim: {lr: 1.0e-3}
trainer: {total_epochs: 4, save_freq: 1, test_freq: 3, max_ckpt_to_keep: 2}
"""
SFT = """
defaults: [agent_sft, cpu_sft, _self_]
env: {name: guess_number, train_tasks: small_train, eval_tasks: small_test}
agent: {name: raw}
episodes: {records: episodes.jsonl, weight: task}
data: {train_max_samples: 4, train_batch_size: 2, micro_batch_size_per_gpu: 2, max_length: 96}
model: {path: model}
engine: {mixed_precision: {param_dtype: float32}}
optim: {lr: 1.0e-3}
checkpoint: {save_contents: [model, optimizer, extra]}
trainer: {total_epochs: 3}
"""


def episodes() -> list[EpisodeRecord]:
    """Eight made-up tasks, each with a reply that was right and one that was not, after a first turn."""
    return [
        talk(f"Look {reply}", reward, task, env="guess_number", prompt=f"Task {task}.")
        for task in GUESSES
        for reply, reward in (("right", 1.0), ("wrong", 0.0))
    ]


def write_offline_recipes(folder: Path) -> None:
    """Write a model, episodes and the recipes `sft` and `dpo` into a folder."""
    write_model(folder / "model")
    with EpisodeWriter(folder / "episodes.jsonl") as writer:
        for record in episodes():
            writer.write(record)
    (folder / "dpo.yaml").write_text(DPO)
    (folder / "sft.yaml").write_text(SFT)


def start(folder: Path, command: str, *overrides: str, ranks: int = 1) -> subprocess.Popen[str]:
    """Start a recipe of `write_offline_recipes`, with torchrun for several ranks."""
    launcher: Sequence[str] = [sys.executable, "-m"]
    if ranks > 1:
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", "-m"]
    arguments = [f"verl_agent.commands.{command}", "--config-dir", str(folder), "--config-name", command]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "VERL_PLATFORM": "cpu"}
    return subprocess.Popen(
        [*launcher, *arguments, *overrides],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finished(process: subprocess.Popen[str], timeout_s: float = 240) -> str:
    output, _ = process.communicate(timeout=timeout_s)
    assert process.returncode == 0, output
    return output


def kill_after(process: subprocess.Popen[str], run: Path, step: int) -> int:
    """Kill a run once a step is saved, and return the last saved step."""
    tracker = run / "latest_checkpointed_iteration.txt"
    until = time.monotonic() + 240
    while not (tracker.is_file() and int(tracker.read_text()) >= step):
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < until
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    return int(tracker.read_text())


def metrics(run: Path) -> dict[int, dict[str, float]]:
    return read_metrics(sorted((run / "metrics").glob("*.jsonl")))
