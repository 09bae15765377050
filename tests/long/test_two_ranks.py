"""Two FSDP2 ranks with two rollout engines on the CPU: they play the same episodes and make the update of one rank.

Mini-batches are smaller than the batch, so the order of rows counts. All computation is in float32.
"""

import subprocess
from pathlib import Path

import pytest

from tests.support.models import write_byte_model
from tests.support.training_runs import command_line, run_environment, wait_for_end
from verl_agent.trace.metrics_log import read_metrics
from verl_agent.trace.record_files import read_records

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
critic: {ppo_mini_batch_size: 2, fsdp: {mixed_precision: {param_dtype: fp32}}}
trainer: {total_training_steps: 2, save_freq: -1, test_freq: -1, val_before_train: false}
"""
PPO = ["+overlay/algorithm=ppo", "offload=false", "critic.optim.lr=1.0e-3", "critic.ppo_micro_batch_size_per_gpu=4"]
TOLERANCE = 1e-5

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


def train(root: Path, *overrides: str) -> tuple[dict[str, float], list[tuple[object, ...]]]:
    """Return the metrics and the replies of the first step of a run."""
    root.mkdir()
    root.joinpath("ranks.yaml").write_text(RECIPE)
    write_byte_model(root / "model", ["Guess a whole number from 1 to 12. Higher. Lower."], vocabulary=300)
    command = command_line(
        "train",
        root,
        "ranks",
        *overrides,
        f"actor_rollout_ref.model.path={root / 'model'}",
        f"trainer.default_local_dir={root / 'run'}",
    )
    ended = subprocess.run(
        command, env=run_environment(root), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert wait_for_end(root) == []
    assert ended.returncode == 0, ended.stdout
    first = [record for record in read_records(root / "run") if record["step"] == 1]
    replies = [(each["task"], each["sample"], [turn["reply"] for turn in each["turns"]]) for each in first]
    return read_metrics(sorted(root.glob("run/metrics/*.jsonl")))[1], sorted(replies)


@pytest.mark.parametrize("overrides", [[], PPO], ids=["grpo", "ppo"])
def test_two_ranks_make_the_update_of_one(tmp_path: Path, overrides: list[str]):
    (one, replies), (two, same) = (
        train(tmp_path / "one", *overrides),
        train(tmp_path / "two", "+overlay/size=2ranks_cpu", *overrides),
    )
    assert replies == same
    compared = [key for key in one if key.startswith(("actor/", "critic/")) and "perf" not in key]
    assert {"actor/grad_norm", "actor/pg_loss"} <= {*compared} and one["actor/grad_norm"] > 0
    different = {key: (one[key], two[key]) for key in compared if abs(one[key] - two[key]) > TOLERANCE}
    assert different == {}
