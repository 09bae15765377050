"""Test that a run with `trainer.test_best` tests each new best checkpoint itself, also after it was killed.

Takes minutes on two cores. The model is small and random.
"""

from pathlib import Path

import pytest

from tests.support.training_runs import KILLED_STEPS, check_killed_run, train_killed
from verl_agent.runs.best_checkpoint import read_best, validation_result
from verl_agent.trace.metrics_log import read_metrics
from verl_agent.trace.record_files import read_records

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


def test_each_new_best_checkpoint_is_tested_in_a_run_that_was_killed(tmp_path: Path):
    dev, own = tmp_path / "dev.txt", [f"30:{number}" for number in range(1, 9)]
    dev.write_text("\n".join(own))
    changes = ["trainer.test_best=true", "trainer.test_freq=1", f"env.dev_tasks={dev}"]
    run = train_killed(tmp_path / "root", *changes, "actor_rollout_ref.actor.optim.lr=5.0e-3")
    check_killed_run(run)
    records, metrics = list(read_records(run / "episodes")), read_metrics(sorted(run.glob("metrics/*.jsonl")))
    assert {record["task"] for record in records if record["purpose"] == "validation"} == set(own)
    new_best, best = {KILLED_STEPS}, None
    for step in sorted(set(metrics) - {0}):
        result = validation_result(step, metrics[step])
        assert result is not None
        if result.better_than(best):
            new_best, best = new_best | {step}, result
    assert read_best(run) == best
    tested = {record["step"] for record in records if record["purpose"] == "test"}
    assert tested - {0} >= new_best  # a kill between checkpoint and log loses the metrics of one step
    assert all(any(key.startswith("test-core/") for key in metrics[step]) for step in new_best)
