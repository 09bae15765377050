"""Tiny training runs that record the config keys which they read, one for each combination of `RUNS`."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests import ROOT
from tests.support import setting_reads
from tests.support.models import write_byte_model, write_critic, write_qwen2
from tests.support.training_runs import command_line, run_environment, wait_for_end

RECIPE = """
defaults: [agent_grpo, cpu, _self_]
env: {name: guess_number, train_tasks: small_train, eval_tasks: small_test, options: {tolerant: true}}
agent: {name: raw}
horizon: {max_turns: [2]}
episode: {max_tokens_per_turn: 8, on_truncated_turn: play}
credit: {invalid_action_cost: 0.1}
data: {train_batch_size: 4, max_prompt_length: 256, max_response_length: 256}
actor_rollout_ref:
  actor: {use_kl_loss: false, ppo_mini_batch_size: 2, optim: {lr: 1.0e-3}}
  rollout: {n: 4, max_num_seqs: 16, dtype: float32}
trainer: {total_training_steps: 1, save_freq: -1, test_freq: -1, val_before_train: false}
"""
"""One step of a tiny model, with mini-batches smaller than the batch."""
ACTOR, CORRECTION = "actor_rollout_ref.actor", "algorithm.rollout_correction"
KL, SAVE = f"{ACTOR}.use_kl_loss=true", "trainer.save_freq=1"
MEGATRON = ("model_engine=megatron", f"{ACTOR}.megatron.dtype=float32")
CRITIC = ("critic.optim.lr=1.0e-3", "critic.ppo_mini_batch_size=2", "critic.ppo_micro_batch_size_per_gpu=4")
PPO = ("+overlay/algorithm=ppo", "offload=false", *CRITIC)
RUNS: Mapping[str, Sequence[str]] = {
    "grpo": (),
    "kl": (KL, SAVE, f"{ACTOR}.use_dynamic_bsz=true", "+overlay/correction=token_is", "trainer.val_before_train=true"),
    "ppo": (*PPO, SAVE, "algorithm.use_kl_in_reward=true", "algorithm.kl_ctrl.type=adaptive"),
    "rloo": ("+overlay/algorithm=rloo", KL, "trainer.test_freq=1", f"{ACTOR}.optim.lr_scheduler_type=cosine"),
    "megatron": (*MEGATRON, KL),
    "partial": ("+overlay/rollout=partial", "+overlay/algorithm=turn_returns", SAVE, "trainer.test_freq=1"),
    "lora": ("+overlay/lora=rank_32", "+overlay/algorithm=reinforce_pp", KL, SAVE, f"{ACTOR}.use_dynamic_bsz=true"),
    "turn_ppo": ("+overlay/algorithm=turn_ppo", "offload=false", *CRITIC, "+overlay/ratio=turn"),
    "dapo": ("+overlay/algorithm=dapo", "+overlay/ratio=gspo", "+overlay/correction=sequence_rs"),
    "sglang": ("+overlay/rollout=sglang", SAVE),
    "gigpo": ("+overlay/algorithm=gigpo", "+overlay/size=2ranks_cpu", f"{ACTOR}.loss_agg_mode=seq-mean-token-sum-norm"),
    "megatron_ppo": (*MEGATRON, *PPO, SAVE, "algorithm.use_kl_in_reward=true"),
}
"""Overrides by name. Each switch of a condition is on in another set of runs."""
PYTHONS = {"megatron": ".venv-megatron-cpu", "sglang": ".venv-sglang-cpu"}
"""Virtual environment of the runs whose name begins so, below the folder `VENVS` or the repository."""


def run(name: str, folder: Path, timeout_s: float = 600) -> dict[str, set[str]]:
    """Run a combination and return the keys that it read, each with its readers as `file:line`."""
    if not (folder / "reads").is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "recipe.yaml").write_text(RECIPE)
        texts = ["Guess a whole number from 1 to 12. Higher. Lower."]
        write = write_qwen2 if name.startswith("megatron") else write_byte_model
        write(folder / "model", texts, vocabulary=300)
        paths = [f"actor_rollout_ref.model.path={folder / 'model'}", f"trainer.default_local_dir={folder / 'run'}"]
        if any(override.startswith("critic.") for override in RUNS[name]):
            paths.append(f"critic.model.path={write_critic(folder / 'critic', folder / 'model')}")
        command = command_line("train", folder, "recipe", *RUNS[name], *paths)
        venv = next((venv for prefix, venv in PYTHONS.items() if name.startswith(prefix)), None)
        if venv is not None:
            command[0] = str(Path(os.environ.get("VENVS", ROOT), venv, "bin", "python"))
        traced = {"VERL_USE_EXTERNAL_MODULES": setting_reads.__name__, setting_reads.READS: str(folder / "reading")}
        try:
            with (folder / "log.txt").open("w") as log:
                subprocess.run(
                    command,
                    env=run_environment(folder) | traced,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    timeout=timeout_s,
                    check=True,
                )
        finally:
            wait_for_end(folder)
        (folder / "reading").rename(folder / "reads")
    return read(folder / "reads")


def read(folder: Path) -> dict[str, set[str]]:
    """Return the keys in a folder of reads, each with its readers."""
    found: dict[str, set[str]] = {}
    for file in folder.iterdir():
        for line in file.read_text().splitlines():
            key, reader = line.split("\t")
            if "/transfer_queue/" in reader:  # it merges its section with its defaults
                key = f"transfer_queue.{key}"
            found.setdefault(key, set()).add(reader)
    return found
