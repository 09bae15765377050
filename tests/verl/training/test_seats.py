"""Test training with two seats of one policy: returns, groups and baselines of each seat, and refusals."""

import json
from collections import defaultdict
from statistics import fmean, stdev

import pytest

from tests.support.arenas import Duel
from tests.support.packages import write_metadata
from tests.support.training_runs import train_to_end
from verl_agent.agents.settings import AgentSettings
from verl_agent.config.settings import RunEnv
from verl_agent.envs.settings import EnvSettings
from verl_agent.errors import ConfigError
from verl_agent.horizon import Horizon
from verl_agent.rollout.settings import EpisodeSettings
from verl_agent.trace.record_files import read_records
from verl_agent.trace.token_files import read_tokens, token_files
from verl_agent.training.estimators import ROLE_DECAY
from verl_agent.training.seats import check_seats

OVERRIDES = (
    *("env.name=duel", "env.train_tasks=train", "env.eval_tasks=test", "env.dev_tasks=null"),
    *("env.options={seats: [self, self]}", "credit.invalid_action_cost=0", "episode.record_tokens={every: 1}"),
    *("actor_rollout_ref.rollout.val_kwargs.n=2", "trainer.save_freq=1"),
)


def advantage(rows, record):
    """Return the advantage of an episode, which all its tokens share."""
    row = next(one for one in rows if (one.group, one.sample) == (record["group"], record["sample"]))
    values = {round(value, 5) for value in row.columns["advantages"] if value is not None and value == value}
    assert len(values) == 1
    return values.pop()


@pytest.mark.parametrize("estimator", ["grpo", "rae"])
def test_a_run_trains_both_seats_each_with_its_own_return_and_group(tmp_path, estimator):
    packages = tmp_path / "packages"
    packages.mkdir()
    write_metadata(packages, "duel", {"verl_agent.envs": {"duel": "tests.support.arenas:Duel"}})
    run = train_to_end(tmp_path, *OVERRIDES, f"algorithm.adv_estimator={estimator}", packages=[packages])
    records = [one for one in read_records(run) if one["purpose"] == "train"]
    matches = defaultdict(dict)
    for record in records:
        matches[record["data"]["match"]][record["data"]["seat"]] = record
    assert len(matches) == 2 * 4 * 2, "two steps, four tasks, two matches"
    for seats in matches.values():
        assert seats.keys() == {"left", "right"}
        assert seats["left"]["reward"] == -seats["right"]["reward"]
        assert seats["left"]["group"] == seats["right"]["group"]
    assert any(record["reward"] for record in records)
    rows = [row for file in token_files(run) for row in read_all(file, records)]
    if estimator == "grpo":
        check_groups(records, rows)
    else:
        check_baselines(run, records, rows)


def read_all(file, records):
    known = {(record["group"], record["sample"]) for record in records}
    return [row for group, sample in sorted(known) for row in read_tokens(file, group, sample)]


def check_groups(records, rows):
    """Check that a seat is compared with the same seat of the task's other matches."""
    groups = defaultdict(list)
    for record in records:
        groups[record["group"], record["data"]["seat"]].append(record)
    for group in groups.values():
        returns = [record["reward"] for record in group]
        for record in group:
            expected = (record["reward"] - fmean(returns)) / (stdev(returns) + 1e-6)
            assert advantage(rows, record) == pytest.approx(expected, abs=1e-3)


def check_baselines(run, records, rows):
    """Check the advantages of both steps against baselines by seat, and those in the checkpoint."""
    baselines = defaultdict(float)
    for step in (1, 2):
        played = sorted(
            (one["group"], one["sample"], one["data"]["seat"], one["reward"]) for one in records if one["step"] == step
        )
        for group, sample, seat, result in played:
            baselines[seat] = ROLE_DECAY * baselines[seat] + (1 - ROLE_DECAY) * result
            record = {"group": group, "sample": sample}
            assert advantage(rows, record) == pytest.approx(result - baselines[seat], abs=1e-4)
        saved = json.loads((run / f"global_step_{step}/baselines.json").read_text())
        assert saved == pytest.approx({f"duel: duel, {seat}": value for seat, value in baselines.items()})


def duel(seats):
    env = RunEnv(
        env=EnvSettings("duel"),
        agent=AgentSettings("raw"),
        horizon=Horizon([2]),
        episode=EpisodeSettings(max_tokens_per_turn=8),
    )
    env.__dict__["live"] = Duel(seats)
    return env


@pytest.mark.parametrize(
    ("seats", "estimator", "samples", "message"),
    [
        (["self", "self"], "turn_returns", 4, "adv_estimator='turn_returns' compares the episodes of all seats.*rae"),
        (["self", "self"], "reinforce_plus_plus", 4, "Or train one seat"),
        (["self", "self"], "grpo", 5, r"rollout.n=5 is not allowed.*multiples of 2 from 4 on"),
        (["self", "self"], "grpo", 2, r"rollout.n=2 is not allowed"),
    ],
)
def test_settings_that_cannot_part_the_seats_raise_config_error(seats, estimator, samples, message):
    with pytest.raises(ConfigError, match=message):
        check_seats(estimator, samples, 2, duel(seats))


def test_one_trained_seat_may_have_any_estimator():
    check_seats("turn_returns", 3, 1, duel(["self", "script:random"]))
    check_seats("rae", 2, 2, duel(["self", "self"]))
