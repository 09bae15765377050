"""Two FSDP2 ranks with two rollout engines on the CPU: they play the same episodes and make the update of one rank.

Either resumes from a checkpoint of the other. Mini-batches are smaller than the batch, so the order of rows counts. All
computation is in float32.
"""

import shutil
from pathlib import Path

import pytest

from tests.support.training_runs import PPO, check_killed_run, train_killed, train_to_end
from verl_agent.trace.metrics_log import read_metrics
from verl_agent.trace.record import EpisodeRecord
from verl_agent.trace.record_files import read_records

TOLERANCE = 1e-5
TWO_RANKS = "+overlay/size=2ranks_cpu"
SKIP_UNIFORM = "trainer.v1.sampler.sampler_kwargs.skip_uniform"
MINI_BATCH_TASKS = 2
"""Tasks in a mini-batch of `train_to_end`."""
AVERAGED = {"critic/vpred_mean"}
"""Metrics that verl averages over micro batches of different numbers of tokens; others sum or weigh them."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


def first_step(root: Path, *overrides: str) -> tuple[dict[str, float], list[EpisodeRecord]]:
    """Return the metrics and the episodes of the first step of a run."""
    return step_of(train_to_end(root, *overrides), 1)


def step_of(run: Path, step: int) -> tuple[dict[str, float], list[EpisodeRecord]]:
    """Return the metrics and the episodes of a step of a run."""
    records = [record for record in read_records(run) if record["step"] == step]
    return read_metrics(sorted(run.glob("metrics/*.jsonl")))[step], records


def rewind(run: Path) -> None:
    """Remove all that a run has written after its first step."""
    for name in ("global_step_2", "metrics", "episodes"):
        shutil.rmtree(run / name)
    (run / "latest_checkpointed_iteration.txt").write_text("1")


def replies(records: list[EpisodeRecord]) -> list[tuple[str, int, list[str]]]:
    """Return task, sample and replies of each episode."""
    return sorted((each["task"], each["sample"], [turn["reply"] for turn in each["turns"]]) for each in records)


def groups_with_a_signal(records: list[EpisodeRecord]) -> int:
    """Return the number of tasks whose samples differ in return."""
    returns: dict[str, set[float]] = {}
    for record in records:
        returns.setdefault(record["task"], set()).add(record["shaped_return"])
    return sum(len(values) > 1 for values in returns.values())


def differences(one: dict[str, float], two: dict[str, float]) -> dict[str, tuple[float, float]]:
    """Return the metrics of an update that differ by more than `TOLERANCE`."""
    compared = [
        key for key in one if key.startswith(("actor/", "critic/")) and key not in AVERAGED and "/perf/" not in key
    ]
    assert {"actor/grad_norm", "actor/pg_loss"} <= {*compared} and one["actor/grad_norm"] > 0
    return {key: (one[key], two[key]) for key in compared if abs(one[key] - two[key]) > TOLERANCE}


@pytest.mark.parametrize("overrides", [[], PPO], ids=["grpo", "ppo"])
def test_two_ranks_make_the_update_of_one(tmp_path: Path, overrides: list[str]):
    one, episodes = first_step(tmp_path / "one", *overrides)
    two, same = first_step(tmp_path / "two", TWO_RANKS, *overrides)
    assert replies(episodes) == replies(same)
    assert differences(one, two) == {}


@pytest.mark.parametrize(("wrote", "reads"), [([], [TWO_RANKS]), ([TWO_RANKS], [])], ids=["one by two", "two by one"])
def test_the_checkpoint_of_other_ranks_is_resumed_as_if_never_interrupted(tmp_path: Path, wrote, reads):
    options = [*PPO, "trainer.save_freq=1"]
    run = train_to_end(tmp_path / "root", *wrote, *options)
    expected, episodes = step_of(run, 2)
    rewind(run)
    train_to_end(tmp_path / "root", *reads, *options)
    actual, same = step_of(run, 2)
    assert replies(episodes) == replies(same)
    assert differences(expected, actual) == {}


def test_two_ranks_make_the_update_of_one_when_rows_have_no_loss(tmp_path: Path):
    """Groups of equal returns are left out, so rows without loss fill up the last mini-batch."""
    one, episodes = first_step(tmp_path / "one", f"{SKIP_UNIFORM}=true")
    two, same = first_step(tmp_path / "two", TWO_RANKS, f"{SKIP_UNIFORM}=true")
    assert replies(episodes) == replies(same)
    assert groups_with_a_signal(episodes) % MINI_BATCH_TASKS != 0
    assert differences(one, two) == {}


def test_a_killed_run_of_two_ranks_resumes_with_the_same_tasks(tmp_path: Path):
    check_killed_run(train_killed(tmp_path / "killed", TWO_RANKS))
