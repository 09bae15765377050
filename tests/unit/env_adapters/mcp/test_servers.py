"""Test MCP servers that fail, answer badly or describe their tools badly, with real processes."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.support.mcp_servers import FINISH, PUT, SERVERS, plain, play, servers_left
from verl_agent.errors import ConfigError, EnvError
from verl_agent.runs.console import exiting
from verl_agent.types import ToolCall

NO_ANSWERS = ("string", "number", "list", "null", "bare", "text_error")


@pytest.mark.parametrize(
    ("variant", "call_s", "observation", "info"),
    [
        ("logs", 30.0, "stored right", {"stray_output": 4.0}),  # of discover, initialize, list and call
        ("blames", 30.0, "put failed: no room", {"call_error_function_failed": 1.0}),
        ("refuses", 30.0, "put failed: no room", {"server_error": 1.0, "invalid_action": None}),
        ("broken", 30.0, "put failed: no room", {"server_error": 1.0, "invalid_action": None}),
        ("own_timeout", 30.0, "put failed: no room", {"server_error": 1.0}),
        ("large", 30.0, "[999000 characters left out]", {}),
        ("image", 30.0, "(image left out)", {}),
        ("empty", 30.0, "(no result)", {}),
    ],
)
def test_what_a_server_does_badly_is_an_answer_or_is_counted(make, variant, call_s, observation, info):
    (step,) = play(make(variant, call_s=call_s, output_chars=1000), PUT)
    assert observation in step.observation
    assert len(step.observation) < 1100
    assert {name: step.info.get(name) for name in info} == info


@pytest.mark.parametrize(
    ("variant", "message"),
    [
        ("dies", r"'one': it has ended\. The servers wrote: out of luck"),
        ("hangs", "does not answer any more"),
        ("silent", r"'one': does not answer within 3 seconds"),
        ("ends", r"'one': it has ended\. The servers wrote: no configuration"),
        ("old", r"'one': RuntimeError: Unsupported protocol version from the server: 1999-01-01"),
        ("no_list", r"'one': cannot list its tools: no database \(-32603\)"),
        ("slow_list", r"'one': does not list its tools within 3 seconds"),
        ("endless", "'one': lists its tools on more than 100 pages"),
        ("too_large", "'one': it sent a message of more than 32 MiB"),
        ("text", "'one': its answer to 'put' is no result of MCP: content"),
        ("unknown_part", "'one': its answer to 'put' is no result of MCP: content.1"),
        ("no_object", "'one': its answer to 'put' is no result of MCP: content.0"),
        *((name, r"'one': its answer to 'put' is no result of MCP: .*jsonrpc") for name in NO_ANSWERS),
        ("bare_list", r"'one': cannot list its tools: its answer is no result of MCP: .*jsonrpc"),
    ],
)
def test_a_server_that_ends_or_never_answers_is_an_environment_error_and_nothing_is_left(make, variant, message):
    env = make(variant, call_s=0.5, start_s=3.0 if variant in ("silent", "slow_list") else 60.0)
    with pytest.raises(EnvError, match=message):
        play(env, PUT)
    assert servers_left() == []


@pytest.mark.parametrize(
    ("server", "message"),
    [
        (plain("ends"), "it has ended. Correct its command or url, or set env.options.start_s=3 higher."),
        (plain("silent"), "does not answer within 3 seconds"),
        (plain("slow_list"), "does not list its tools within 3 seconds"),
        (plain("no_list"), "cannot list its tools: no database"),
        ({"command": [sys.executable, "/no/such/server.py"]}, "can't open file '/no/such/server.py'"),
        ({"url": "http://127.0.0.1:9/mcp"}, "ConnectError"),
    ],
)
def test_a_server_that_fails_before_any_episode_ends_a_command_with_one_message(make, capfd, server, message):
    env = make({"one": server}, start_s=3.0)
    with pytest.raises(SystemExit) as ended, exiting():
        _ = env.action_format
    assert ended.value.code == 2
    said = capfd.readouterr().err
    assert said.startswith("error: env.options.servers: the MCP server 'one': ")
    assert message in " ".join(said.split())
    assert "Traceback" not in said
    assert servers_left() == []


def test_json_lines_that_are_no_answers_are_stray_output(make):
    (step,) = play(make("json_logs"), PUT)
    assert step.observation.startswith("stored right")
    assert step.info["stray_output"] == 16.0


@contextmanager
def web(*arguments: str) -> Iterator[dict[str, Any]]:
    """Start the server behind a URL, and yield the environment's servers."""
    command = [sys.executable, str(SERVERS / "web.py"), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield {"one": {"url": process.stdout.readline().strip()}}
        finally:
            process.kill()


def error(code: int, message: str) -> str:
    return json.dumps({"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": message}})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["application/json"], "Failed to parse"),
        (["text/event-stream"], "Failed to parse"),
        (["text/html"], "Unexpected content type: text/html"),
        (["text/html", "401", "Log in"], "Server returned an error response"),
        (["text/html", "502", "Bad gateway"], "Server returned an error response"),
        (["text/html", "404", "Lost"], "Not Found"),
        (["text/html", "404", "Lost", "session"], "Session terminated"),
        (["application/json", "404", error(-32600, "Session not found"), "session"], "Session not found"),
        (["application/json", "404", error(-32001, "Session not found"), "session"], "Session not found"),
        (["application/json", "404", error(-32600, "Not Found: Session has been terminated")], "Not Found: Session"),
        (["application/json", "400", error(-32000, "Bad Request: Server not initialized")], "Bad Request: Server"),
    ],
)
def test_a_failure_of_the_service_behind_a_url_is_an_environment_error(make, arguments, message):
    with web(*arguments) as servers, pytest.raises(EnvError, match=f"answer to 'put' is no result of MCP: {message}"):
        play(make(servers), PUT)


def test_a_service_that_fails_a_ping_after_a_slow_call_is_an_environment_error(make):
    with web("never", "502") as servers, pytest.raises(EnvError, match="answer to a ping is no result of MCP: Server"):
        play(make(servers, call_s=0.5), PUT)
    with web("never") as servers:
        (step,) = play(make(servers, call_s=0.5), PUT)
    assert (step.observation, dict(step.info)) == ("put failed: no answer within 0.5 seconds", {"server_error": 1.0})


@pytest.mark.parametrize(
    ("code", "message", "measured"),
    [
        (-32602, "no room", "call_error_function_failed"),
        (-32600, "no room", "server_error"),
        (-32603, "Session not found in the calendar", "server_error"),
    ],
)
def test_an_error_of_a_tool_behind_a_url_is_an_answer(make, code, message, measured):
    with web("application/json", "400", error(code, message)) as servers:
        (step,) = play(make(servers), PUT)
    assert step.observation == f"put failed: {message}"
    assert step.info[measured] == 1.0


def test_a_slow_tool_is_an_answer_while_its_server_answers(make):
    servers = {"notes": {"command": [sys.executable, str(SERVERS / "notes.py")]}}
    slow, read, absent, listed = play(
        make(servers, call_s=1.5, check="true"),
        ToolCall("wait", {"seconds": 4}),
        ToolCall("write", {"name": "a", "text": "b"}),
        ToolCall("read", {"name": "no"}),
        ToolCall("count", {}),
    )
    assert slow.observation == "wait failed: no answer within 1.5 seconds"
    assert slow.info == {"server_error": 1.0}
    assert read.observation == "wrote 1 characters"
    assert "there is no note no" in absent.observation and absent.info["call_error"]
    assert json.loads(listed.observation)["notes"] == 1


@pytest.mark.parametrize(
    ("variant", "message"),
    [
        ("no_schema", r"servers\.one: the description of its tool 'put' is not valid: .*inputSchema"),
        ("draft_4", r"servers\.one: tool 'put': .*exclusiveMinimum.*convert it to draft 2020-12.*Correct it"),
        ("lost_reference", r"servers\.one: tool 'put': .*'#/\$defs/Lost'.*Correct it in the server"),
    ],
)
def test_a_tool_that_is_badly_described_is_refused_with_server_and_remedy(make, variant, message):
    with pytest.raises(ConfigError, match=message):
        _ = make(variant).action_format


def test_stray_lines_after_the_last_call_are_counted_at_the_end(make):
    assert sum(step.info.get("stray_output", 0) for step in play(make("late_logs"), PUT, FINISH)) == 4.0
