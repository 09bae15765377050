"""Test the environment against its contract and its data sheet."""

import asyncio

from workshop.adapter import Workshop

from verl_agent import ToolCall, check_adapter


def test_check_adapter_reports_no_violation():
    report = check_adapter(Workshop, name="workshop")
    assert not report.violations, str(report)


def test_half_of_the_reward_is_for_each_repaired_fault():
    async def play(*calls: ToolCall) -> float:
        env = Workshop()
        await env.reset(env.tasks("train")[0])
        return sum([(await env.step(call)).reward for call in calls])

    replace, tighten, finish = (demo.action for demo in Workshop().demonstration(Workshop().tasks("train")[0]))
    assert asyncio.run(play(finish)) == 0.0
    assert asyncio.run(play(replace, finish, finish)) == 0.5
    assert asyncio.run(play(tighten, replace, finish)) == 1.0


def test_the_splits_are_as_large_as_the_data_sheet_says():
    assert [len(Workshop().tasks(split)) for split in ("train", "test")] == [48, 12]
