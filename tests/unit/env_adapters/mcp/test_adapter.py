"""Test MCP servers as an environment: real processes over stdio and HTTP, hostile ones, sandboxes and what is left."""

import asyncio
import socket
import subprocess
import sys

import pytest

import verl_agent as va
from env_adapters.mcp.adapter import Mcp
from tests import ROOT
from tests.support.mcp_servers import FINISH, PUT, STORED, plain, play, servers_left
from tests.support.waiting import wait_until
from verl_agent.agents.registry import make_agent
from verl_agent.agents.settings import AgentSettings
from verl_agent.envs.testing.check import check_adapter
from verl_agent.errors import ConfigError, EnvError
from verl_agent.rollout.oracle import demonstrate
from verl_agent.types import TaskItem, ToolCall


def test_the_tools_of_a_server_are_those_of_the_agent_and_a_check_judges_the_folder(make):
    env = make()
    assert [tool.name for tool in env.action_format.tools] == ["put", "finish"]
    assert env.action_format.tools[0].parameters["required"] == ["text"]
    stored, ended, after = play(env, PUT, FINISH, PUT)
    assert stored.observation.startswith("stored right by ")
    assert (ended.reward, ended.terminated, ended.observation) == (1.0, True, "The check passes.")
    assert after.terminated and after.reward == 0
    wrong, missing = play(env, ToolCall("put", {"text": "wrong"}), FINISH)[1], play(env, FINISH)[0]
    assert (wrong.reward, missing.reward, missing.terminated) == (0.0, 0.0, True)


def test_a_check_reads_task_and_answer_and_one_that_cannot_run_is_an_environment_error(make):
    check = 'python3 -c \'import json, sys; t = json.load(sys.stdin); sys.exit(t["answer"] != t["data"]["wanted"])\''
    env = make(task={"check": check, "data": {"wanted": "7"}, "files": {"sub/a.txt": "x"}})
    answers = [play(env, ToolCall("finish", {"answer": text}))[0].reward for text in ("7", "8")]
    assert answers == [1.0, 0.0]
    for start in ("", "cd . && ", "timeout 5 ", "env A=1 ", "A=1 ", "set -e; "):
        with pytest.raises(EnvError, match="exit status is 127"):
            play(make(check=f"{start}no-such-program-here -q"), FINISH)


@pytest.mark.parametrize("sandbox", ["", "bubblewrap"])
@pytest.mark.parametrize("check", ["bash missing.sh", "./stored", " sh -c 'exit 127'", "(exit 126)"])
def test_a_check_that_misses_a_file_of_the_policy_earns_nothing(make, check, sandbox):
    try:
        ended = play(make(check=check, sandbox=sandbox), PUT, FINISH)[1]
    except ConfigError as error:
        pytest.skip(str(error))
    assert (ended.reward, ended.terminated, ended.observation) == (0.0, True, "The check does not pass.")


def test_a_function_gives_the_reward(make):
    env = make(reward="tests.support.mcp_servers.rewards:score")
    assert play(env, PUT, ToolCall("finish", {"answer": "Store right."}))[1].reward == 0.75


@pytest.mark.parametrize(
    ("variant", "message"),
    [
        ("twins", r"servers\.one: its tools 'put' and 'Put' differ only in case.*env\.options\.tools"),
        ("twice", r"servers\.one: the server lists its tool 'put' twice\. Correct the server, or.*env\.options\.tools"),
        ("finish", r"'finish' has the name of the environment's own.*servers\.one\.prefix.*env\.options\.tools"),
    ],
)
def test_a_tool_whose_name_is_taken_is_refused_with_the_remedy_that_helps(make, variant, message):
    with pytest.raises(ConfigError, match=message) as refused:
        _ = make(variant).action_format
    assert ("prefix" in str(refused.value)) == (variant == "finish")
    chosen = make(variant, tools=["put"]) if variant != "twice" else make({"one": plain(prefix="my_")})
    assert len(chosen.action_format.tools) == 2


def test_two_servers_with_tools_of_one_name_are_refused_and_a_prefix_tells_them_apart(make):
    with pytest.raises(
        ConfigError, match=r"'put' of 'one' and 'put' of 'two' have the same name.*servers\.two\.prefix"
    ):
        _ = make({"one": plain(), "two": plain()}).action_format
    env = make({"one": plain(), "two": plain(prefix="second_")})
    assert [tool.name for tool in env.action_format.tools] == ["put", "second_put", "finish"]
    first, second = play(env, PUT, ToolCall("second_put", {"text": "right"}))
    assert first.observation.split()[-1] != second.observation.split()[-1]  # two processes
    with pytest.raises(ConfigError, match=r"'put\.text'.*env\.options\.tools"):
        _ = make("dots").action_format
    with pytest.raises(ConfigError, match=r"no 'get'"):
        _ = make(tools=["get"]).action_format


@pytest.mark.parametrize(
    ("options", "task", "message"),
    [
        ({"servers": {}}, {}, "env.options.servers is empty"),
        ({"servers": {"one": {"command": ["no-such-program"]}}}, {}, "not a program on this machine"),
        ({"servers": {"one": {"url": "http://a", "command": ["sh"]}}}, {}, "either a command or a url"),
        ({"servers": {"one": {"comand": ["sh"]}}}, {}, "comand"),
        ({"reward": "no_module_here:f"}, {}, "cannot be imported"),
        ({"sandbox": "chroot"}, {}, "env.options.sandbox='chroot'"),
        ({"call_s": 0}, {}, "call_s"),
        ({"limits": {"memory": 64}}, {}, r"limits\.memory is not a setting\. Did you mean 'memory_mb'"),
        ({"limits": {"memory_mb": 31}}, {}, r"limits\.memory_mb=31 is not allowed\. Allowed: a whole number >= 32"),
        ({}, {"split": "dev"}, r"tasks\.jsonl:1: split='dev'"),
        ({}, {"files": {"../a": ""}}, "outside of the folder"),
        ({}, {"prompt": 3}, r"tasks\.jsonl:1: prompt=3 is not allowed\. Allowed: a text\."),
        ({}, {"checks": "true"}, r"tasks\.jsonl:1: unknown key 'checks'\. Did you mean 'check'\?"),
        (
            {},
            {"solution": [{"name": "put", "args": {}}]},
            r"solution\[0\]: unknown key 'args'\. Did you mean 'arguments'",
        ),
        ({"check": ""}, {}, "has no check"),
    ],
)
def test_settings_and_tasks_that_cannot_be_played_are_refused_by_name(make, options, task, message):
    with pytest.raises(ConfigError, match=message):
        make(**{"servers": "good", "task": task, **options}).tasks("train")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"id": "1"', r"tasks\.jsonl:1: the line is not allowed: EOF .*Allowed: one JSON object a line"),
        ("", r"tasks\.jsonl:1: the line is not allowed: EOF .*Allowed: one JSON object a line"),
        ("[1]", r"tasks\.jsonl:1: the line is not allowed: .*Allowed: one JSON object a line"),
        ('{"id": "1", "check": "true"}', r"tasks\.jsonl:1: prompt is missing\. Allowed: a text\."),
    ],
)
def test_a_line_that_is_no_task_is_refused_with_what_is_allowed(tmp_path, line, message):
    file = tmp_path / "tasks.jsonl"
    file.write_text(line + "\n")
    with pytest.raises(ConfigError, match=message):
        Mcp({"one": plain()}, str(file), check="true")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ({"name": "put", "arguments": {"text": 3}}, "call 1 of the solution of the task '1' .*text = 3 is not allowed"),
        ({"name": "puts", "arguments": {}}, "call 1 of the solution of the task '1' .*Did you mean 'put'"),
    ],
)
def test_a_solution_that_a_tool_would_refuse_names_task_and_argument(make, call, message):
    env = make(task={"solution": [call]})
    agent = make_agent(AgentSettings("tools"), env.action_format)
    with pytest.raises(ConfigError, match=message):
        demonstrate(env.tasks("train")[0], env.new_session(), agent)


def test_64_sessions_run_at_once_with_a_process_and_a_folder_each_and_nothing_is_left(make):
    env = make()

    async def session(number: int) -> tuple[str, float]:
        one = env.new_session()
        try:
            await one.reset(env.tasks("train")[0])
            step = await one.step(PUT)
            open_now.add(number)
            while len(open_now) < 64:
                await asyncio.sleep(0.05)
            return step.observation, (await one.step(FINISH)).reward
        finally:
            await one.close()

    async def together() -> list[tuple[str, float]]:
        return await asyncio.gather(*map(session, range(64)))

    open_now: set[int] = set()
    played = asyncio.run(together())
    assert len({observation for observation, _ in played}) == 64
    assert {reward for _, reward in played} == {1.0}
    wait_until(lambda: servers_left() == [])


def test_what_a_server_has_started_ends_with_the_session(make):
    assert play(make("forks"), PUT, FINISH)[1].reward == 1.0
    assert servers_left() == []


def test_the_oracle_plays_the_solution_through_an_agent_that_calls_functions(make):
    env = make()
    (task,) = env.tasks("train")
    assert [str(demo.action) for demo in env.demonstration(task)] == [
        str(PUT),
        '{"name": "finish", "arguments": {"answer": ""}}',
    ]
    replies = iter([f"<tool_call>{call}</tool_call>" for call in (PUT, FINISH)])
    episode = va.play_sync(task, env, agent="tools", policy=lambda messages: next(replies), max_turns=3)
    assert episode.success
    assert [message["role"] for message in episode.messages] == [
        "system",
        "user",
        "assistant",
        "tool",
        "assistant",
        "tool",
    ]
    with pytest.raises(NotImplementedError):
        env.demonstration(TaskItem("mcp", "x", {"prompt": ""}))


def test_a_server_behind_a_url_is_connected_to(make):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    code = f"from tests.support.mcp_servers.notes import server; server.run('streamable-http', port={port})"
    process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: not socket.socket().connect_ex(("127.0.0.1", port)))
        env = make({"notes": {"url": f"http://127.0.0.1:{port}/mcp"}}, check="true", tools=["much"])
        (step,) = play(env, ToolCall("much", {"characters": 3}))
        assert step.observation == "aaa"
        process.kill()
        process.wait()
        with pytest.raises(EnvError):
            play(env, ToolCall("much", {"characters": 3}))
    finally:
        process.kill()
        process.wait()


def test_solutions_of_the_recipes_tasks_solve_them():
    env = Mcp(
        {"store": {"command": ["{python}", str(ROOT / "recipes/mcp/store.py")]}}, str(ROOT / "recipes/mcp/tasks.jsonl")
    )
    assert {split: len(env.tasks(split)) for split in env.splits} == {"train": 43, "test": 13}
    calls = [demo.action for demo in env.demonstration(env.tasks("train")[0])]
    assert [step.reward for step in play(env, *calls)] == [0.0, 0.0, 1.0]
    other = ToolCall("set_number", {"name": "keys", "number": 1})
    assert play(env, calls[0], calls[1], other, FINISH)[-1].reward == 0.0


def test_servers_run_in_the_terminals_sandbox(make):
    env = make(sandbox="bubblewrap")
    try:
        stored, ended = play(env, PUT, FINISH)
    except ConfigError as error:
        pytest.skip(str(error))
    assert int(stored.observation.split()[-1]) < 100  # a process id in a namespace of its own
    assert ended.reward == 1.0
    with pytest.raises(EnvError, match="it has ended"):
        play(make("dies", sandbox="bubblewrap"), PUT)
    assert servers_left() == []


def test_the_environment_keeps_the_contract(make, tmp_path):
    make()
    options = {"servers": {"one": plain("steady")}, "tasks": str(next(iter(tmp_path.glob("*.jsonl")))), "check": STORED}
    report = check_adapter(Mcp, {**options, "deterministic": True}, name="mcp")
    assert report.violations == [], str(report)
