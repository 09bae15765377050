"""Environment whose episodes last up to the turn limit, for `tests.bench.scale --turns` and `--instant`."""

from typing_extensions import override

from tests.bench.waiting import WaitingEnv
from verl_agent.envs.base import Hosting
from verl_agent.types import Message, StepResult, TaskItem


class EndlessEnv(WaitingEnv):
    """`WaitingEnv` without latency that nothing ends."""

    hosting = Hosting(threads=0)

    @override
    async def reset(self, item: TaskItem) -> list[Message]:
        return [{"role": "user", "content": "Begin."}]

    @override
    async def step(self, action: str) -> StepResult:
        return StepResult(self._observation)
