"""Test that tasks which fail to begin are tried again, then left out, and stop the run only above the error limit."""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import ClassVar

import pytest

from verl_agent.envs.base import EnvAdapter
from verl_agent.envs.hosts.host import CallLimits
from verl_agent.envs.hosts.local import inline_pool
from verl_agent.envs.hosts.slot import PoolLimits
from verl_agent.envs.settings import EnvSettings
from verl_agent.errors import ConfigError
from verl_agent.training.preflight.prompts import SIDE_BY_SIDE, FirstMessages, begin_tasks
from verl_agent.types import Message, StepResult, TaskItem


class Flaky(EnvAdapter):
    """Environment whose tasks fail to begin; each test makes a subclass.

    Attributes:
        failures: number of failed resets before the first good one, by task id; 0 for other tasks.
        resets: number of resets of each task.
    """

    failures: ClassVar[Mapping[str, int]]
    resets: ClassVar[Counter[str]]

    def tasks(self, split: str) -> Sequence[TaskItem]:
        return []

    async def reset(self, item: TaskItem) -> list[Message]:
        self.resets[item.id] += 1
        if self.resets[item.id] <= self.failures.get(item.id, 0):
            raise ConnectionError("the page did not load")
        return [{"role": "user", "content": f"task {item.id}"}]

    async def step(self, action: str) -> StepResult:
        raise AssertionError("tasks are not played")


def begin(failures: Mapping[str, int], count: int, limit_s: float = 60.0, **env) -> tuple[FirstMessages, Counter[str]]:
    """Return the first messages of tasks 0 to `count`, and the number of resets of each."""
    adapter = type("Flaky", (Flaky,), {"failures": failures, "resets": Counter()})

    async def run() -> FirstMessages:
        pool = inline_pool(adapter(), CallLimits(timeout_s=10.0), PoolLimits(count=4, wait_s=10.0))
        try:
            items = [TaskItem("flaky", str(number)) for number in range(count)]
            return await begin_tasks(pool, EnvSettings("flaky", **env), items, limit_s)
        finally:
            await pool.shutdown()

    return asyncio.run(run()), adapter.resets


def test_a_task_that_fails_to_begin_is_tried_again_as_often_as_env_retries_says():
    begun, resets = begin({"1": 2}, 4)
    assert begun == FirstMessages({str(n): [{"role": "user", "content": f"task {n}"}] for n in range(4)}, {})
    assert resets == {"0": 1, "1": 3, "2": 1, "3": 1}


def test_a_task_that_fails_at_every_attempt_is_left_out_with_its_error():
    begun, resets = begin({"1": 9}, 4, retries=1)
    assert list(begun.prompts) == ["0", "2", "3"]
    assert resets["1"] == 2
    assert begun.failures.startswith("1 failed to begin (task '1': ")
    assert "the page did not load" in begun.failures


@pytest.mark.parametrize(("broken", "rate"), [(3, 0.5), (1, 0.0), (4, 1.0)], ids=["share", "none allowed", "all"])
def test_more_failures_than_max_env_error_rate_raise_config_error(broken, rate):
    with pytest.raises(ConfigError) as error:
        begin({str(number): 9 for number in range(broken)}, 4, retries=0, max_env_error_rate=rate)
    assert str(error.value).startswith(
        f"env 'flaky' does not work: of 4 tasks, {broken} failed to begin (task '0': "
    ), error.value
    assert f"env.max_env_error_rate={rate:g} allows a smaller share" in str(error.value)


def test_the_first_group_of_tasks_begins_however_little_time_there_is():
    begun, _ = begin({}, SIDE_BY_SIDE + 1, limit_s=0.0)
    assert len(begun.prompts) == SIDE_BY_SIDE
