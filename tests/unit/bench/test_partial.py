"""Tests of the benchmark of asynchronous rollout: its environment, registration and summary. Speed is not tested."""

import asyncio
import subprocess
import sys

import pytest

from tests import ROOT
from tests.bench.partial import BATCH, SAMPLES, WAITING, register, summarize
from tests.bench.waiting import MIN_TURNS, WaitingEnv
from verl_agent.types import TaskItem


async def turns_until_solved(env: WaitingEnv, item: TaskItem) -> int:
    """Return the number of turns of an episode, at most 25."""
    session = env.new_session()
    await session.reset(item)
    for turn in range(1, 26):
        if (await session.step("anything")).terminated:
            return turn
    return 26


def test_episodes_end_by_chance_and_tasks_differ():
    """Without latency, as in the scene in which the engine is the bottleneck."""
    env = WaitingEnv(median_s=0.0)

    async def lengths() -> list[list[int]]:
        return [[await turns_until_solved(env, item) for _ in range(20)] for item in env.tasks("train")[:20]]

    played = asyncio.run(lengths())
    assert min(map(min, played)) >= MIN_TURNS
    solved = [sum(turns <= 25 for turns in task) / 20 for task in played]
    assert 0.5 < sum(solved) / 20 < 0.9 and max(solved) - min(solved) > 0.2


def test_the_environment_is_registered_for_other_processes(tmp_path):
    program = "from verl_agent.envs.registry import load_adapter; print(load_adapter('waiting').__name__)"
    path = f"{register(tmp_path, **WAITING)}:{ROOT}"
    done = subprocess.run([sys.executable, "-c", program], env={"PYTHONPATH": path}, capture_output=True, text=True)
    assert done.stdout == "WaitingEnv\n", done.stderr


def test_a_group_that_no_step_trained_on_shows_in_the_result():
    names = ("staleness/mean", "timing_s/gen")
    steps = {
        1: {"timing_s/step": 90.0, "staleness/max": 9.0, **dict.fromkeys(names, 0.0)},
        2: {"timing_s/step": 8.0, "staleness/max": 1.0, **dict.fromkeys(names, 0.5)},
        3: {"timing_s/step": 12.0, "staleness/max": 2.0, **dict.fromkeys(names, 0.7)},
    }
    records = [{"group": f"{number}", "sample": 0, "success": number % 2 == 0} for number in range(3 * BATCH)]
    trained = {step: {(f"{number}", 0) for number in range((step - 1) * BATCH, step * BATCH)} for step in steps}
    result = summarize(steps, records, trained)
    assert result.episodes_s == pytest.approx(BATCH * SAMPLES / 10)
    assert (result.update, result.oldest, result.solved) == pytest.approx((0.94, 2.0, 0.5))
    assert (result.played, result.once) == (0.5, True)
    left = summarize(steps, [*records, {"group": "left", "sample": 0, "success": True}], trained)
    assert not left.once and left.solved == 0.5 < left.played
    replaced = {**trained, 3: {*trained[3] - {("16", 0)}, ("0", 0)}}  # as many groups, of which one twice
    assert not summarize(steps, records, replaced).once
