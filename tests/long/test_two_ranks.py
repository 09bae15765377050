"""Two FSDP2 ranks with two rollout engines on the CPU: they play the same episodes and make the update of one rank.

Mini-batches are smaller than the batch, so the order of rows counts. All computation is in float32.
"""

from pathlib import Path

import pytest

from tests.support.training_runs import PPO, train_to_end
from verl_agent.trace.metrics_log import read_metrics
from verl_agent.trace.record_files import read_records

TOLERANCE = 1e-5
AVERAGED = {"critic/vpred_mean"}
"""Metrics that verl averages over micro batches of different numbers of tokens; others sum or weigh them."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


def first_step(root: Path, *overrides: str) -> tuple[dict[str, float], list[tuple[object, ...]]]:
    """Return the metrics and the replies of the first step of a run."""
    run = train_to_end(root, *overrides)
    records = [record for record in read_records(run) if record["step"] == 1]
    replies = [(each["task"], each["sample"], [turn["reply"] for turn in each["turns"]]) for each in records]
    return read_metrics(sorted(run.glob("metrics/*.jsonl")))[1], sorted(replies)


@pytest.mark.parametrize("overrides", [[], PPO], ids=["grpo", "ppo"])
def test_two_ranks_make_the_update_of_one(tmp_path: Path, overrides: list[str]):
    one, replies = first_step(tmp_path / "one", *overrides)
    two, same = first_step(tmp_path / "two", "+overlay/size=2ranks_cpu", *overrides)
    assert replies == same
    compared = [key for key in one if key.startswith(("actor/", "critic/")) and key not in AVERAGED]
    assert {"actor/grad_norm", "actor/pg_loss"} <= {*compared} and one["actor/grad_norm"] > 0
    different = {key: (one[key], two[key]) for key in compared if abs(one[key] - two[key]) > TOLERANCE}
    assert different == {}
