"""Scripted conversations for each kind of error of a call, in each format, in process, over HTTP and behind APIs.

Each has a reply with the error, and a good one, which shows that the episode goes on.
"""

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import verl_agent as va
from tests.support.api_evaluations import KINDS, evaluated
from tests.support.model_server import ModelServer
from tests.support.packages import write_metadata
from tests.support.serving import RunningEnv, pool_of, post
from tests.support.tool_envs import Garden
from verl_agent.envs.call_error import CALL_ERRORS
from verl_agent.envs.call_formats import CALL_FORMATS
from verl_agent.envs.http.client import HttpEnv
from verl_agent.envs.http.server import EnvServer
from verl_agent.envs.http.settings import ServerLimits
from verl_agent.envs.http.task_index import TaskIndex
from verl_agent.envs.registry import ENTRY_POINT_GROUP
from verl_agent.messages import expanded
from verl_agent.results.failures import find_failures

Write = Callable[[str, Mapping[str, Any]], str]
ERRORS: Mapping[str, tuple[Callable[[Write], str], str]] = {
    "no_call": (lambda write: "I dig.", "No function call found. Call one of: plant(plant, spot, on, "),
    "broken_json": (lambda write: write("dig", {"depth": 5, "note": "a" * 60})[:-70], "The call is "),
    "unknown_function": (lambda write: write("digg", {"depth": 5}), "There is no function 'digg'. Did you mean 'dig'?"),
    "missing_argument": (lambda write: write("dig", {}), "dig was not called: depth is missing. Allowed: integer."),
    "unknown_argument": (lambda write: write("dig", {"depth": 5, "deep": 1}), "deep is no argument. Did you mean 'dep"),
    "wrong_argument": (lambda write: write("dig", {"depth": "deep"}), 'depth = "deep" is not allowed: '),
    "function_failed": (lambda write: write("dig", {"depth": 0}), "dig failed: ZeroDivisionError"),
    "not_done": (lambda write: "\n".join([write("dig", {"depth": 5})] * 3), "only 2 calls are carried out"),
}
"""Reply with each kind of error, and a part of what the model reads."""


def play(env: Any, kind: str, calls: str) -> va.Episode:
    """Play a reply with an error and a good one, and check what is counted."""
    write, (reply, part) = CALL_FORMATS[calls].write, ERRORS[kind]
    script = iter([reply(write), write("dig", {"depth": 5})])
    agent = va.make_agent("tools", env.action_format, calls=calls, max_calls=2)
    item = env.tasks("test")[0]
    episode = va.play_sync(item, env, policy=lambda _: next(script), agent=agent, max_turns=2)
    first, second = episode.turns
    assert first.step is not None and second.step is not None
    found = {name.removeprefix("call_error_") for name in first.step.info if name.startswith("call_error_")}
    assert found == {kind} and part in first.step.observation
    assert first.step.info.get("call_error", 0) == (kind != "not_done")
    assert second.step.observation == "20 cm" and "call_error" not in second.step.info
    return episode


def test_each_kind_of_error_has_a_conversation():
    assert set(ERRORS) == set(CALL_ERRORS)


@pytest.mark.parametrize("calls", CALL_FORMATS)
@pytest.mark.parametrize("kind", ERRORS)
def test_the_model_reads_the_error_as_the_answer_to_its_call_in_each_format(kind, calls):
    episode = play(Garden(), kind, calls)
    answer = episode.messages[3]
    listed = bool(CALL_FORMATS[calls].listing)  # the prompt lists the functions, and the user answers
    assert answer["role"] == ("user" if listed or kind == "no_call" else "tool")
    if kind == "not_done":
        assert listed or len(expanded([answer])) == 3


@contextmanager
def installed(folder: Path) -> Iterator[None]:
    """Register the environment `garden`."""
    folder.mkdir(exist_ok=True)
    write_metadata(folder, "garden", {ENTRY_POINT_GROUP: {"garden": "tests.support.tool_envs:Garden"}})
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    with installed(tmp_path_factory.mktemp("garden")):
        pool = pool_of(Garden)
        running = RunningEnv(EnvServer(TaskIndex("garden", {}, "test"), pool, ServerLimits()), pool, 0)
        yield running
        running.stop()


def without_reason(text: str) -> str:
    """Return an answer without the words of the validator: over HTTP a tool is known by its schema alone."""
    return re.sub(r"not allowed: .*? Allowed", "not allowed: Allowed", text)


@pytest.mark.parametrize("kind", ERRORS)
def test_an_environment_over_http_has_the_same_conversation(served, kind):
    far, near = play(HttpEnv("garden", [served.url]), kind, "hermes"), play(Garden(), kind, "hermes")
    assert [turn.action for turn in far.turns] == [turn.action for turn in near.turns]
    assert [without_reason(one["content"]) for one in far.messages[2:]] == [
        without_reason(one["content"]) for one in near.messages[2:]
    ]


SENT = {
    "no_call": "I dig.",
    "broken_json": '{"name": "dig", "arguments": {',
    "unknown_function": {"name": "digg", "arguments": {}},
    "missing_argument": {"name": "dig", "arguments": {}},
    "unknown_argument": {"name": "dig", "arguments": {"depth": 5, "deep": 1}},
    "wrong_argument": {"name": "dig", "arguments": {"depth": "deep"}},
    "function_failed": {"name": "dig", "arguments": {"depth": 0}},
}
"""Action of a client that has no agent, for each kind of error that a single one can have."""


@pytest.mark.parametrize("kind", SENT)
def test_a_client_without_an_agent_reads_the_error_too(served, kind):
    session = post(served, "/create").json()["id"]
    post(served, "/reset", {"id": session, "item": "test"})
    answer = post(served, "/step", {"id": session, "bare_action": SENT[kind]}).json()
    assert answer["info"][f"call_error_{kind}"] == 1, answer
    assert ERRORS[kind][1] in answer["observation"] or kind in ("no_call", "broken_json")


CALLED = {
    "no_call": "I dig.",
    "unknown_function": {"name": "digg", "arguments": {"depth": 5}},
    "missing_argument": {"name": "dig", "arguments": {}},
    "unknown_argument": {"name": "dig", "arguments": {"depth": 5, "deep": 1}},
    "wrong_argument": {"name": "dig", "arguments": {"depth": "deep"}},
    "function_failed": {"name": "dig", "arguments": {"depth": 0}},
}
"""Answer of a model behind an API for each kind of error that its protocols can carry in one call."""


@pytest.mark.parametrize("api", KINDS)
@pytest.mark.parametrize("kind", CALLED)
def test_a_model_behind_an_api_reads_the_error_as_the_result_of_its_call(tmp_path, kind, api):
    """The fake server refuses requests in which a call has no result with its id."""

    def model(messages: Any) -> Any:
        replied = [one for one in messages if one.role == "assistant"]
        return {"name": "dig", "arguments": {"depth": 5}} if replied else CALLED[kind]

    with installed(tmp_path / "site"), ModelServer(model).running() as server:
        env = {"env": {"name": "garden", "hosts": {"where": "inline"}}, "horizon": {"max_turns": [2]}}
        evaluation = evaluated(tmp_path / "run", server, api, agent="tools", tasks="test", max_tasks=1, config=env)
    (record,) = evaluation.records()
    first, second = record["turns"]
    assert first["info"][f"call_error_{kind}"] == 1 and ERRORS[kind][1] in first["observation"]
    assert second["observation"] == "20 cm" and len(server.bodies) == 2
    *_, last = server.bodies[1]["messages"]
    shown = last if isinstance(last["content"], str) else last["content"][-1]
    assert ERRORS[kind][1] in json.dumps(shown, ensure_ascii=False).replace("\\", "") or kind == "wrong_argument"
    (failed,) = find_failures([record], Garden())
    assert failed.call_errors == {kind: 1}
