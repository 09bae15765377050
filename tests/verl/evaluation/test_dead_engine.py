"""Test the error of a rollout engine whose process has ended during an evaluation."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from vllm.v1.engine.exceptions import EngineDeadError

from verl_agent.errors import ReplyUnavailableError
from verl_agent.evaluation.vllm_engine import Route, VllmEngine
from verl_agent.runs.deaths import MemoryWatch


class Dead:
    async def generate(self, *prompt: object, **options: object) -> AsyncIterator[None]:
        raise EngineDeadError()
        yield


class EngineOfDeadProcess(VllmEngine):
    def __init__(self) -> None:
        self._memory, self._route, self._engine = MemoryWatch(), Route(1), Dead()


def test_dead_engine_leaves_its_episode_pending():
    reply = EngineOfDeadProcess().generate("1", prompt_ids=[1], sampling_params={"temperature": 1.0})
    with pytest.raises(ReplyUnavailableError, match=r"EngineCore.* ended unexpectedly.*evaluation\.output_dir"):
        asyncio.run(reply)
