"""Overlays and settings of the method, each in a whole training run of two steps with a tiny model."""

import math
from pathlib import Path

import pytest

from tests.support.packages import install_example
from tests.support.training_runs import PPO, train_to_end
from verl_agent.trace.metrics_log import read_metrics
from verl_agent.trace.record_files import read_records

SOLVES_SOME = ["horizon.max_turns=[6]", "data.max_response_length=512"]
TURN_PPO = ["+overlay/algorithm=turn_ppo", *PPO[1:]]
METHODS = {
    "a ratio for each turn, and rejection of rows": (
        ["+overlay/ratio=turn", "+overlay/correction=sequence_rs"],
        ["rollout_corr/rollout_rs_seq_mean_k1_masked_fraction", "rollout_corr/rollout_is_mean"],
    ),
    "GSPO with weights of rows": (
        ["+overlay/ratio=gspo", "+overlay/correction=sequence_is"],
        ["rollout_corr/rollout_is_mean", "rollout_corr/rollout_is_eff_sample_size"],
    ),
    "PPO with rejection of tokens": (
        [*PPO, "+overlay/correction=token_rs"],
        ["rollout_corr/rollout_rs_token_k1_masked_fraction", "critic/vf_loss"],
    ),
    "a critic of turns": ([*TURN_PPO, "+overlay/correction=token_is"], ["critic/vf_loss"]),
    "truncated episodes left out": (["credit.truncated=drop", *SOLVES_SOME], ["credit/dropped_share"]),
    "truncated episodes bootstrapped": (
        [*PPO, "credit.truncated=bootstrap", "algorithm.gamma=0.95"],
        ["critic/vf_loss"],
    ),
    "truncated episodes bootstrapped by a critic of turns": (
        [*TURN_PPO, "credit.truncated=bootstrap", "credit.turn_gamma=0.95"],
        ["critic/vf_loss"],
    ),
    "asynchronous rollout with DAPO": (
        ["+overlay/rollout=partial", "+overlay/algorithm=dapo", *SOLVES_SOME],
        ["staleness/mean", "rollout_corr/rollout_is_mean"],
    ),
    "asynchronous rollout with a critic": (
        [*PPO, "+overlay/rollout=partial"],
        ["staleness/mean", "critic/vf_loss"],
    ),
    "two agent-loop workers": (["actor_rollout_ref.rollout.agent.num_workers=2"], ["episode/turns_mean"]),
}
"""Overrides of each method, and metrics that it must log."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


@pytest.mark.parametrize(("overrides", "logged"), METHODS.values(), ids=METHODS)
def test_a_method_trains(tmp_path: Path, overrides: list[str], logged: list[str]):
    run = train_to_end(tmp_path / "method", *overrides)
    metrics = read_metrics(sorted(run.glob("metrics/*.jsonl")))
    assert sorted(metrics) == [1, 2]
    missing = [(step, key) for step in metrics for key in logged if not math.isfinite(metrics[step].get(key, math.nan))]
    assert missing == []
    assert any(metrics[step]["actor/grad_norm"] > 0 and metrics[step]["credit/dropped_share"] < 1 for step in metrics)
    if "actor_rollout_ref.rollout.agent.num_workers=2" in overrides:
        records = list(read_records(run / "episodes"))
        assert len({(record["group"], record["sample"]) for record in records}) == len(records) == 2 * 4 * 4
    if "credit.truncated=drop" in overrides:
        assert any(0 < metrics[step]["credit/dropped_share"] < 1 for step in metrics)


def test_the_algorithms_of_the_example_train(tmp_path: Path):
    packages = install_example("own_algorithms", tmp_path)
    own = ("algorithm.adv_estimator=leave_one_out", "credit.options.below=0.5")
    loss = "actor_rollout_ref.actor.policy_loss.loss_mode=plain_gradient"
    schedule = ("horizon.max_turns=[1,2]", "horizon.schedule=waves", "horizon.options.period=2")
    run = train_to_end(tmp_path / "own", *own, loss, *schedule, packages=packages)
    metrics = read_metrics(sorted(run.glob("metrics/*.jsonl")))
    assert [metrics[step]["episode/horizon"] for step in (1, 2)] == [1, 2]
    assert all(math.isfinite(metrics[step]["actor/ppo_kl"]) for step in metrics)
    assert any(metrics[step]["actor/grad_norm"] > 0 for step in metrics)
    assert not any("actor/pg_clipfrac" in metrics[step] for step in metrics)  # the loss has no ratio
