"""Environments of tools: what a function may do, and what the model reads."""

import asyncio
import datetime
import errno
import gzip
import json
import re
import shutil
import subprocess
import sys
from typing import Any
from urllib.error import URLError

import httpx
import numpy as np
import pytest
import requests

import verl_agent as va
from tests import ROOT
from tests.support.tool_envs import Garden, Loud, Spot
from verl_agent.envs.hosts.host import CallLimits
from verl_agent.envs.hosts.local import process_pool
from verl_agent.envs.hosts.slot import PoolLimits
from verl_agent.envs.session import PooledEnv
from verl_agent.envs.tool_env import as_step
from verl_agent.errors import ConfigError, EnvError
from verl_agent.types import StepResult, ToolCall


def play(env: Any, *replies: str, **options: Any) -> Any:
    """Play replies with an agent that calls functions."""
    script = iter(replies)
    agent = va.make_agent("tools", env.action_format, **options)
    item = env.tasks("test")[0]
    return va.play_sync(item, env, policy=lambda messages: next(script), agent=agent, max_turns=len(replies))


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def test_functions_get_typed_values_and_rewards_come_from_their_results():
    env = Garden()
    asyncio.run(env.reset(env.tasks("test")[0]))
    planted = ToolCall("plant", {"plant": "rose", "spot": {"row": 1}, "on": "2026-03-01", "notes": ["a"]})
    asyncio.run(env.step(planted))
    assert env.planted == [("rose", Spot(1, 1), datetime.date(2026, 3, 1), "bed", 1, ["a"])]
    assert asyncio.run(env.step(ToolCall("count", {}))).observation == "1"
    assert asyncio.run(env.step(ToolCall("list-tools", {}))).observation == '{"Schuppen": ["größer", "🪴"]}'
    assert asyncio.run(env.step(ToolCall("finish", {}))) == StepResult("Done.", 1.0, True)


def test_a_demonstration_of_calls_solves_the_task_with_any_agent():
    env = Garden()
    item = env.tasks("test")[0]
    for name in ("tools", "react", "act", "think", "plan"):
        agent = va.make_agent(name, env.action_format)
        replies = [agent.render_demo(env.demonstration(item), turn) for turn in range(2)]
        script = iter(replies)
        episode = va.play_sync(item, env, policy=lambda messages, script=script: next(script), agent=name, max_turns=2)
        assert episode.success, (name, episode.turns)
        assert episode.turns[0].action == env.demonstration(item)[0].action


@pytest.mark.parametrize(
    ("reply", "part", "kind"),
    [
        (call("dig", depth=0), "dig failed: ZeroDivisionError", "function_failed"),
        (call("water", litres=1), "(no result)", None),
        (call("dig", depth="5"), "20 cm", None),
        (call("dig", depth=5.0), "20 cm", None),
        (call("dig", depth=1, deep=5), "deep is no argument", "unknown_argument"),
        (call("plant", plant="x" * 2**20, spot={"row": 1}), "planted 'xxx", None),
        (call("Dig", depth=1), "100 cm", None),
        (call("digg", depth=1), "Did you mean 'dig'?", "unknown_function"),
        ("I dig.", "No function call found", "no_call"),
        (call("dig", depth=1)[:-15], "is cut off", "broken_json"),
        (f"<think>{call('dig', depth=1)}</think>", "inside of the thinking", "no_call"),
    ],
)
def test_bad_input_is_an_answer_for_the_model(reply, part, kind):
    (turn,) = play(Garden(), reply).turns
    assert turn.step is not None and part in turn.step.observation
    errors = {name for name in turn.step.info if name.startswith("call_error_")}
    assert errors == (set() if kind is None else {f"call_error_{kind}"})
    assert turn.step.info["calls"] == 1 and turn.step.info.get("call_error", 0) == (kind is not None)


def test_text_that_was_read_as_a_number_is_counted():
    (turn,) = play(Garden(), call("dig", depth="5")).turns
    assert turn.action == ToolCall("dig", {"depth": 5}) and turn.step.info["arguments_read"] == 1


class Mute(Exception):
    """Exception without a text."""

    def __str__(self) -> str:
        raise RuntimeError


class Odd(Garden):
    """Functions that do what functions do sooner or later."""

    @va.tool
    def leave(self) -> None:
        """Leave."""
        sys.exit(3)

    @va.tool
    def thing(self) -> object:
        """Return something that is no JSON."""
        return object()

    @va.tool
    def number(self) -> float:
        """Return something that is no JSON."""
        return float("nan")

    @va.tool
    def broken(self) -> None:
        """End the episode."""
        raise EnvError("the garden is flooded.")

    @va.tool
    def mute(self) -> None:
        """Raise an exception that has no text."""
        raise Mute

    @va.tool
    def cancel(self) -> None:
        """Behave as a library that cancels itself."""
        raise asyncio.CancelledError

    @va.tool
    def again(self) -> list[Any]:
        """Return a list that contains itself."""
        endless: list[Any] = []
        endless.append(endless)
        return endless

    @va.tool
    def recurse(self) -> str:
        """Call itself for ever."""
        return self.recurse()

    @va.tool
    def stop(self) -> str:
        """Raise what ends generators."""
        raise StopIteration(3)

    @va.tool
    async def wait(self) -> None:
        """Never return."""
        await asyncio.Event().wait()

    def dig(self, depth: int) -> str:
        """Dig deeper; an override of a tool is one."""
        return f"deeper: {depth}"

    @staticmethod
    @va.tool
    def plain(text: str) -> str:
        """Repeat a text."""
        return text


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("leave", "leave failed: SystemExit: 3"),
        ("thing", "it returned a object"),
        ("number", "number failed"),
        ("mute", "mute failed: Mute: (its text"),
        ("cancel", "cancel failed: CancelledError"),
        ("again", "it returned a list"),
        ("recurse", "recurse failed: RecursionError"),
        ("stop", "stop failed: RuntimeError: coroutine raised StopIter"),
    ],
)
def test_a_function_that_misbehaves_is_an_answer_for_the_model(name, part):
    (turn,) = play(Odd(), call(name)).turns
    assert part in turn.step.observation and turn.step.info["call_error_function_failed"] == 1


@pytest.mark.parametrize(
    ("returned", "shown"),
    [
        (np.float32(1.5), "1.5"),
        (np.array([1, 2]), "[1, 2]"),
        (
            {"count": np.int64(3), "shape": np.eye(2), "open": np.bool_(True), "at": np.datetime64("2026-01-02", "ns")},
            '{"count": 3, "shape": [[1.0, 0.0], [0.0, 1.0]], "open": true, "at": "2026-01-02T00:00:00.000000000"}',
        ),
    ],
)
def test_numbers_and_arrays_of_libraries_are_read_as_json(returned, shown):
    assert as_step(returned).observation == shown


def test_an_env_error_ends_the_episode():
    episode = play(Odd(), call("broken"))
    assert (episode.stop, episode.error) == (va.StopReason.ENV_ERROR, "the garden is flooded.")


class Reading(Garden):
    """Function that raises a given exception."""

    error: BaseException

    @va.tool
    def read(self, file: str) -> str:
        """Read a file."""
        raise self.error


REQUEST = httpx.Request("GET", "http://backend/")


@pytest.mark.parametrize(
    "error",
    [
        ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"),
        OSError(errno.ENOSPC, "No space left on device"),
        *(TimeoutError("backend"), MemoryError(), requests.ConnectionError("refused")),
        URLError(ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")),
        httpx.ConnectError("All connection attempts failed"),
        httpx.HTTPStatusError("busy", request=REQUEST, response=httpx.Response(503)),
        ExceptionGroup("calls", [ConnectionResetError("peer")]),
    ],
)
def test_a_failure_of_the_machine_in_a_function_ends_the_episode(error):
    env = type("Reading", (Reading,), {"error": error})()
    episode = play(env, call("read", file="a"))
    assert episode.stop is va.StopReason.ENV_ERROR
    assert episode.error.startswith(f"read failed: {type(error).__name__}")


@pytest.mark.parametrize(
    "error",
    [
        *(kind(0, "no") for kind in (FileNotFoundError, FileExistsError, IsADirectoryError)),
        *(NotADirectoryError("no"), PermissionError("no"), OSError(errno.ENAMETOOLONG, "File name too long")),
        subprocess.TimeoutExpired("python answer.py", 10),
        requests.exceptions.MissingSchema("Invalid URL 'a': No scheme supplied."),
        *(httpx.HTTPStatusError("no", request=REQUEST, response=httpx.Response(status)) for status in (401, 403, 404)),
        *(OSError(code, "no") for code in (errno.E2BIG, errno.ENOEXEC)),
        *(shutil.SameFileError("a and a"), gzip.BadGzipFile("not gzipped"), URLError("unknown url type: foo")),
        SystemExit(500),
    ],
)
def test_an_exception_about_what_the_model_asked_for_is_an_answer(error):
    env = type("Reading", (Reading,), {"error": error})()
    (turn,) = play(env, call("read", file="a")).turns
    assert turn.step.observation.startswith(f"read failed: {type(error).__name__}")


def test_an_overridden_tool_and_a_static_one_are_called():
    episode = play(Odd(), call("dig", depth=1), call("plain", text=" a "))
    assert [turn.step.observation for turn in episode.turns] == ["deeper: 1", " a "]


def test_a_function_that_never_returns_is_a_timeout():
    item = Odd().tasks("test")[0]
    episode = va.play_sync(item, Odd(), policy=lambda _: call("wait"), agent="tools", max_turns=1, timeout_s=0.2)
    assert episode.stop is va.StopReason.ENV_ERROR and "took more than 0.2 s" in episode.error


def test_a_call_is_cancelled_with_its_episode():
    async def play() -> None:
        env = Odd()
        await env.reset(env.tasks("test")[0])
        waiting = asyncio.create_task(env.step(ToolCall("wait", {})))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(play())


def test_what_a_function_prints_or_reads_in_a_host_process_disturbs_no_call():
    async def play() -> list[str]:
        pool = process_pool(Loud(), CallLimits(60.0), PoolLimits(count=1))
        try:
            session = PooledEnv(Loud(), pool)
            await session.reset(Loud().tasks("test")[0])
            calls = [ToolCall("shout", {}), ToolCall("ask", {}), ToolCall("count", {})]
            return [(await session.step(call)).observation for call in calls]
        finally:
            await pool.shutdown()

    assert asyncio.run(play()) == ["shouted", "ask failed: EOFError: EOF when reading a line", "0"]


def test_a_bad_tool_is_refused_when_the_class_is_made():
    with pytest.raises(ConfigError, match=r"Bad: tool 'f': parameter 'a' has no type"):

        class Bad(Garden):
            @va.tool
            def f(self, a):
                """Take anything."""


def test_rewards_may_be_set_after_each_call():
    class Judged(Garden):
        def after_call(self, call, step):
            return va.StepResult(step.observation, 0.25, terminated=call.name == "count")

    episode = play(Judged(), call("dig", depth=1) + call("count"))
    assert (episode.reward, episode.stop) == (0.5, va.StopReason.TERMINATED)


@pytest.mark.parametrize("error", [KeyError("goal"), ValueError("goal"), FileNotFoundError(errno.ENOENT, "goal")])
def test_an_exception_in_the_reward_is_no_answer_for_the_model(error):
    class Judged(Garden):
        def after_call(self, call, step):
            raise error

    episode = play(Judged(), call("dig", depth=1))
    assert episode.stop is va.StopReason.ENV_ERROR
    assert type(error).__name__ in episode.error and "goal" in episode.error


def test_the_tutorial_runs_as_a_whole_and_shows_what_the_model_reads(capsys):
    page = (ROOT / "docs/start/tools.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {"__name__": "page"}
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(compile(block, "docs/start/tools.md", "exec"), names)
    shown = re.search(r"```text\n(.*?)```", page, re.DOTALL)
    assert shown is not None and capsys.readouterr().out == shown[1]
    assert page.partition("```python\n")[2].partition("```")[0] in (
        ROOT / "examples/workshop/workshop/adapter.py"
    ).read_text(encoding="utf-8"), "the package of the page has its class"
    env = names["Workshop"]()
    assert len(env.action_format.tools) == 5
    for item in [*env.tasks("train"), *env.tasks("test")]:
        replies = [call(demo.action.name, **demo.action.arguments) for demo in env.demonstration(item)]
        script = iter(["".join(replies)])
        assert va.play_sync(item, env, agent="tools", policy=lambda _, script=script: next(script), max_turns=1).success
    bell = names["Bell"]()
    asyncio.run(bell.reset(bell.tasks("test")[0]))
    assert asyncio.run(bell.step(ToolCall("ring", {"times": 2}))).observation == "ring {'times': 2}"
