"""Test places of programs with sandboxes whose output is hostile, and that a close which fails leaves nothing open."""

import asyncio
from pathlib import Path

import httpx
import pytest

from verl_agent.envs.program.adapter import Program
from verl_agent.envs.program.place import Ended, Launch, SandboxPlace
from verl_agent.errors import EnvError
from verl_agent.types import StepResult, TaskItem

ITEM = TaskItem("fake", "one", {})
GOOD = b'{"status": 3, "output": "a", "errors": "b"}'


class FakeSandbox:
    """Sandbox whose program has written a text; closing it fails if it is told to."""

    def __init__(self, output: bytes, limit: str = "", error: Exception | None = None, closes: bool = True) -> None:
        self.output, self.limit, self.error, self.closes = output, limit, error, closes

    async def begin_program(self, item, visible) -> str:
        return "Do it."

    def run_program(self, text: str, settings: bytes) -> tuple[bytes, str]:
        if self.error is not None:
            raise self.error
        return self.output, self.limit

    def kill_program(self) -> None:
        pass

    async def grade_program(self) -> StepResult:
        return StepResult("", 1.0, terminated=True)

    async def close(self) -> None:
        if not self.closes:
            raise RuntimeError("the sandbox cannot be closed")


def play(sandbox: FakeSandbox) -> Ended:
    async def end() -> Ended:
        place = SandboxPlace(sandbox)
        await place.begin(ITEM, ())
        place.start(Launch(["x"], {}, {}), 1, False)
        try:
            return await place.ended()
        finally:
            await place.close()

    return asyncio.run(end())


HOSTILE = [b"", b"[]", b"3", b'"reason"', b"null", b"{}", b'{"status": "0", "output": "", "errors": ""}', b"\xff\xfe"]


@pytest.mark.parametrize("output", [*HOSTILE, b'{"status": 0}', b'{"reason": 3}', b"[" * 100_000, GOOD + GOOD])
def test_output_without_a_result_is_an_end_by_force(output):
    assert play(FakeSandbox(output)).limit == "its first process was ended"


def test_the_end_of_a_program_is_read_unless_a_limit_ended_its_sandbox():
    assert play(FakeSandbox(GOOD)) == Ended(3, "a", "b")
    assert play(FakeSandbox(b'{"reason": "it wrote too much"}')).limit == "it wrote too much"
    assert play(FakeSandbox(GOOD, "cpu")).limit == "it exceeded the limit 'cpu'"
    assert play(FakeSandbox(GOOD, error=EnvError("it has ended."))).limit == "it has ended."


@pytest.mark.parametrize("sandbox", [FakeSandbox(GOOD, closes=False), FakeSandbox(GOOD, error=TypeError("a bug"))])
def test_a_close_that_fails_removes_the_folder_and_closes_the_endpoint(tmp_path, sandbox):
    class Failing(Program):
        async def reset(self, item):
            from verl_agent.envs.program.gateway import Gateway

            self._place, self._gateway = SandboxPlace(sandbox), Gateway()
            self._gateway.start(*self._place.listeners)
            self._place.start(Launch(["x"], {}, {}), self._gateway.port, False)
            await asyncio.sleep(0.1)
            return []

    async def talk() -> tuple[Path, str]:
        tasks = tmp_path / "tasks.jsonl"
        tasks.write_text('{"id": "a", "split": "train"}')
        env = Failing(["sh"], str(tasks))
        await env.reset(ITEM)
        folder, url = env._place._folder, env._gateway.url
        with pytest.raises((RuntimeError, TypeError)):
            await env.close()
        with pytest.raises(httpx.ConnectError):
            async with httpx.AsyncClient() as client:
                await client.get(url)
        return folder, url

    folder, _ = asyncio.run(talk())
    assert not folder.exists()
