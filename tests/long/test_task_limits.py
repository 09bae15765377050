"""Turn limits by task and by group in whole runs of a tiny model: killed and resumed, asynchronous, two workers."""

from collections import defaultdict
from pathlib import Path

import pytest

from tests.support.training_runs import KILLED_STEPS, train_killed, train_to_end
from verl_agent.envs.registry import make_env
from verl_agent.envs.tasks import select_tasks
from verl_agent.horizon import Horizon, Outcome, PerTask
from verl_agent.trace.record import EpisodeRecord
from verl_agent.trace.record_files import read_records
from verl_agent.training.turn_limits import new_schedule

STAGES = [1, 2, 4]
TASKS = ("5:1", "5:2", "6:1", "6:2")
"""Tasks that a random model may solve by chance, so that their limits differ."""
SEED = "1 guess_number"
"""Seed of the schedule: that of the run, and the label of its environment."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


def groups_by_step(run: Path) -> dict[int, dict[str, list[EpisodeRecord]]]:
    """Return the training records by step and group; of a step that was played twice, those of the later start."""
    latest: dict[tuple[int, str, int], EpisodeRecord] = {}
    for record in sorted(read_records(run / "episodes"), key=lambda one: one["started_at"]):
        if record["purpose"] == "train":
            latest[record["step"], record["task"], record["sample"]] = record
    steps: dict[int, dict[str, list[EpisodeRecord]]] = defaultdict(lambda: defaultdict(list))
    for (step, task, _), record in sorted(latest.items()):
        steps[step][task].append(record)
    return steps


def outcome_of(record: EpisodeRecord) -> Outcome:
    turns, limited = len(record["turns"]), record["stop"] == "turn_limit"
    return Outcome(record["task"], record["category"], record["max_turns"], turns, record["success"], limited)


@pytest.mark.parametrize("rule", ["signal", "ladder"])
def test_a_killed_run_has_the_limits_by_task_of_an_undisturbed_one(tmp_path, rule):
    per_task = {"rule": rule} | ({"patience": 1} if rule == "ladder" else {})
    (tmp_path / "tasks.txt").write_text("\n".join(TASKS))
    options = ", ".join(f"{key}: {value}" for key, value in per_task.items())
    horizon = [f"horizon.max_turns={STAGES}", f"horizon.per_task={{{options}}}", "data.max_response_length=512"]
    run = train_killed(tmp_path, *horizon, f"env.train_tasks={tmp_path}/tasks.txt")
    schedule = new_schedule(Horizon(STAGES, per_task=PerTask(**per_task)), SEED)
    items = {item.id: item for item in select_tasks(make_env("guess_number"), str(tmp_path / "tasks.txt"))}
    played = groups_by_step(run)
    assert sorted(played) == list(range(1, KILLED_STEPS + 1))
    for step, groups in sorted(played.items()):
        limits = {task: {record["max_turns"] for record in group} for task, group in groups.items()}
        assert limits == {task: {schedule.limit(step, items[task])} for task in TASKS}, step
        schedule.observe([outcome_of(record) for group in groups.values() for record in group])
    later = {record["max_turns"] for group in played[KILLED_STEPS].values() for record in group}
    assert later != {STAGES[0]}, "no limit ever changed, so the test proves nothing"


WORKERS = "actor_rollout_ref.rollout.agent.num_workers=2"
ASYNCHRONOUS = "+overlay/rollout=partial"


def test_a_group_of_an_asynchronous_run_never_mixes_limits_by_task(tmp_path):
    (tmp_path / "tasks.txt").write_text("\n".join(TASKS))
    rule = "horizon.per_task={rule: ladder, patience: 1}"
    horizon = [f"horizon.max_turns={STAGES}", rule, "data.max_response_length=512"]
    steps = ["trainer.total_training_steps=4", f"env.train_tasks={tmp_path}/tasks.txt"]
    run = train_to_end(tmp_path / "per_task", *horizon, *steps, WORKERS, ASYNCHRONOUS)
    groups = [group for step in groups_by_step(run).values() for group in step.values()]
    limits = [{record["max_turns"] for record in group} for group in groups]
    assert {len(group) for group in groups} == {4} and all(len(of_group) == 1 for of_group in limits)
    assert set[int]().union(*limits) <= set(STAGES)
    assert len(set[int]().union(*limits)) > 1, "all groups have one limit, so the test proves nothing"


@pytest.mark.parametrize(
    ("train", "mode"),
    [(train_to_end, []), (train_to_end, [ASYNCHRONOUS]), (train_killed, [])],
    ids=["synchronous", "asynchronous", "killed"],
)
def test_groups_go_on_together_until_an_episode_succeeds(tmp_path, train, mode):
    horizon = [f"horizon.max_turns={STAGES}", "horizon.deepen=true", "data.max_response_length=512"]
    run = train(tmp_path / "deepen", *horizon, WORKERS, *mode)
    reached = set()
    for groups in groups_by_step(run).values():
        for group in groups.values():
            assert len(group) == 4
            (limit,) = {record["max_turns"] for record in group}
            rung, turns = STAGES.index(limit), max(len(record["turns"]) for record in group)
            assert turns <= limit
            within = [record["success"] and len(record["turns"]) <= STAGES[rung - 1] for record in group]
            assert rung == 0 or not any(within), "the group went on after a success"
            limited = [record for record in group if record["stop"] == "turn_limit"]
            assert all(len(record["turns"]) == limit for record in limited)
            assert limit == STAGES[-1] or not limited or any(record["success"] for record in group)
            reached.add(limit)
    assert len(reached) > 1, "all groups have one limit, so the test proves nothing"
