"""Rates that a running evaluation prints: over all starts, with the range that the end can have."""

import asyncio
import io

import pytest

from tests.support.evaluated_games import evaluated, recipe
from verl_agent.evaluation.job import prepare_evaluation
from verl_agent.evaluation.run import EvaluationProgress, play_pending
from verl_agent.terminal import Console
from verl_agent.types import Episode, Reply, StopReason, TaskItem, Turn


def ended(reward: float, stop: StopReason = StopReason.TERMINATED) -> Episode:
    episode = Episode(TaskItem("talk", "1"), 3, stop=stop)
    episode.success_reward = 0.0 if reward else 1.0
    return episode


def test_the_rate_of_a_part_names_the_part_and_the_range_of_the_whole() -> None:
    progress = EvaluationProgress(Console(file=io.StringIO()), total=10, done=0)
    for reward in (1.0, 1.0, 0.0):
        progress.add(ended(reward))
    progress.add(ended(0.0, StopReason.ENV_ERROR))
    assert progress.state == ("success 66.7% of 3 of 10, short ones first; 22% to 89% at the end, 1 environment errors")
    for _ in range(6):
        progress.add(ended(1.0))
    assert progress.state == "success 88.9%, 1 environment errors"


@pytest.mark.parametrize(("total", "concurrency", "first"), [(40, 32, 32), (10, 1, 1), (4, 8, 4)])
def test_the_time_left_is_shown_after_as_many_episodes_as_are_played_at_once(
    total: int, concurrency: int, first: int
) -> None:
    """Before, all episodes run that ever run at once, and the few that have ended were the quickest."""
    output = io.StringIO()
    progress = EvaluationProgress(Console(file=output, width=400), total, concurrency=concurrency)
    for _ in range(total):
        progress.add(ended(1.0))
    shown = {int(line.split("/")[0]): line.endswith("0:00:00 left") for line in output.getvalue().splitlines()}
    assert shown and shown == {number: number >= first for number in shown}


def test_an_episode_of_a_person_that_ends_in_an_error_is_left_out_once() -> None:
    progress = EvaluationProgress(Console(file=io.StringIO()), total=4, done=0)
    broken = ended(0.0, StopReason.ENV_ERROR)
    broken.turns.append(Turn(Reply("a", author="person"), None, None, 0.0, 0.0))
    for episode in (broken, ended(1.0), ended(1.0), ended(0.0)):
        progress.add(episode)
    assert progress.state == "success 66.7%, 1 with a person's decisions"


def test_a_resumed_evaluation_prints_rates_over_all_starts(tmp_path) -> None:
    evaluated(tmp_path, "expensive", max_tasks=10)
    config = recipe(tmp_path, "python:tests.support.evaluated_games:expensive", 4)
    output = io.StringIO()
    prepared = prepare_evaluation(config)
    assert 0 < len(prepared.pending) < 20
    asyncio.run(play_pending(prepared, Console(file=output, width=400)))
    solved, planned = sum(record["success"] for record in prepared.records()), prepared.planned
    assert f"{planned}/{planned} episodes, success {solved / planned:.1%}" in output.getvalue()
