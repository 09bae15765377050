"""Test the error of a rollout engine whose process has ended during an evaluation."""

import asyncio
import multiprocessing
import time
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
        self._processes = [multiprocessing.get_context("spawn").Process(target=time.sleep, args=(60,))]
        self._processes[0].start()


def test_dead_engine_leaves_its_episode_pending():
    engine = EngineOfDeadProcess()
    engine._processes[0].kill()
    reply = engine.generate("1", prompt_ids=[1], sampling_params={"temperature": 1.0})
    killed = r"EngineCore\) was killed by signal 9 \(SIGKILL\), by .*evaluation\.output_dir"
    with pytest.raises(ReplyUnavailableError, match=killed) as caught:
        asyncio.run(reply)
    assert "first error" not in str(caught.value)
