"""Test the small world of a program: its environment, who may use its endpoint, and inputs that end by name."""

import asyncio
import gzip
import json
import os
import socket
import sys
from functools import partial
from pathlib import Path

import httpx
import pytest

from tests.support.escapes import left
from tests.support.fakes import ScriptedPolicy
from tests.support.gateways import replying, serving, until
from tests.support.programs import make_program, run
from verl_agent.agents.program import ProgramAgent
from verl_agent.envs.machine.keeper import MARK
from verl_agent.envs.program.gateway import MAX_BODY, MAX_REFUSED, Gateway
from verl_agent.errors import ConfigError, EnvError
from verl_agent.rollout.episode import EpisodeLimits, play_episode
from verl_agent.types import StopReason

BODY = {"model": "m", "messages": [{"role": "user", "content": "a"}]}
SECRETS = ("WANDB_API_KEY", "HF_TOKEN", "VERL_AGENT_TOKEN", "AWS_SECRET_ACCESS_KEY")


@pytest.fixture
def program(tmp_path):
    """Function that makes the environment of a program, from its text."""
    return partial(make_program, tmp_path)


def seen(program, tmp_path, **options) -> dict[str, str]:
    """Return the environment of a program."""
    file = tmp_path / "seen.json"
    text = f"ask([user('a')]); open({str(file)!r}, 'w').write(json.dumps(dict(os.environ))); print('{{\"reward\": 1}}')"
    episode, _ = run(program(text, **options), ["one"])
    assert not episode.error
    return json.loads(file.read_text())


def test_a_program_gets_a_clean_environment(program, tmp_path, monkeypatch):
    for name in (*SECRETS, "http_proxy", "SOME_SETTING"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    environment = seen(program, tmp_path)
    assert not {*SECRETS, "http_proxy", "SOME_SETTING"} & set(environment)
    assert environment["NO_PROXY"] == environment["no_proxy"] and "127.0.0.1" in environment["NO_PROXY"]
    assert environment["HOME"] != os.environ.get("HOME")
    assert {name for name in environment if name.startswith("VERL_AGENT")} == {"VERL_AGENT_TASK", MARK}


def test_a_program_gets_the_variables_that_are_listed(program, tmp_path, monkeypatch):
    monkeypatch.setenv("SOME_SETTING", "here")
    environment = seen(program, tmp_path, environment=["SOME_SETTING", "OTHER=there", "HOME=/tmp"])
    assert [environment[name] for name in ("SOME_SETTING", "OTHER", "HOME")] == ["here", "there", "/tmp"]


@pytest.mark.parametrize(
    ("environment", "error"),
    [
        (["NOT_SET_HERE"], "NOT_SET_HERE is not set here"),
        (["OPENAI_API_KEY=x"], "each episode has its own OPENAI_API_KEY"),
        ("PATH", r"Allowed: a list of texts, such as \['PATH'\]"),
    ],
)
def test_variables_that_cannot_be_given_are_refused(program, environment, error):
    with pytest.raises(ConfigError, match=error):
        program("", environment=environment)


FORGES = """
import subprocess
ask([user("a")])
own = open(sys.argv[0]).read().partition("import subprocess")[0]
tool = subprocess.run([sys.executable, "-c", own + "print(ask([user('forged')]))"], capture_output=True, text=True)
print(json.dumps({"reward": float("one_process" in tool.stdout)}))
"""


@pytest.mark.parametrize(("one_process", "turns"), [(True, 1), (False, 2)])
def test_a_tool_with_the_programs_key_is_told_apart_where_the_option_asks_for_it(program, one_process, turns):
    episode, _ = run(program(FORGES, one_process=one_process), ["one", "forged"])
    assert (episode.reward, len(episode.turns)) == (float(one_process), turns)


def test_two_hundred_episodes_leave_no_process(program, tmp_path):
    pids = tmp_path / "pids"
    env = program(f"""
    import subprocess
    child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    open({str(pids)!r}, "a").write(f"{{child.pid}}\\n")
    ask([user("a")])
    print('{{"reward": 1}}')
    """)
    item, limits = env.tasks("train")[0], EpisodeLimits(2, 300.0)

    async def play(room: asyncio.Semaphore) -> StopReason:
        async with room:
            agent = ProgramAgent(env.action_format)
            return (await play_episode(item, env.new_session(), agent, ScriptedPolicy(["one"]), limits)).stop

    async def every() -> list[StopReason]:
        room = asyncio.Semaphore(8)
        return await asyncio.gather(*(play(room) for _ in range(200)))

    assert set(asyncio.run(every())) == {StopReason.TERMINATED}
    started = list(map(int, pids.read_text().split()))
    assert len(started) == 200 and left(started) == []


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("ask([user('a')])\nwhile True: os.write(1, b'x' * (1 << 20))", "wrote more than 64 MiB of output"),
        (
            "ask([user('a')])\nwith open('big', 'wb') as f:\n    for _ in range(1024): f.write(bytes(1 << 20))",
            "File too large",
        ),
        ("ask([user('a')])\ninput('Continue? [y/n] ')", "EOFError"),
        ("ask([user('a')])\nopen('/dev/tty').read()", "No such device"),
        ("while True: ask([user('a')], n=2)", f"{MAX_REFUSED} requests in a row were refused. The last reason: n=2"),
        (
            "while True: post({}, path='/embeddings')",
            "requests in a row were refused. The last reason: POST /v1/embeddings",
        ),
    ],
)
def test_a_program_that_cannot_end_well_ends_in_one_named_failure(program, text, error):
    episode, _ = run(program(text), ["one"], timeout_s=120.0)
    assert episode.stop is StopReason.ENV_ERROR and error in str(episode.error)


def test_two_hundred_parallel_requests_are_answered_each():
    async def talk() -> list[str]:
        async with serving(replying([f"reply {number}" for number in range(200)])) as heard:
            limits = httpx.Limits(max_connections=200)
            async with httpx.AsyncClient(headers=heard.headers, timeout=120, limits=limits) as client:
                url = f"{heard.gateway.url}/v1/chat/completions"
                answers = await asyncio.gather(*(client.post(url, json=BODY) for _ in range(200)))
            return [answer.json()["choices"][0]["message"]["content"] for answer in answers]

    assert sorted(asyncio.run(talk())) == sorted(f"reply {number}" for number in range(200))


def test_any_model_name_is_served_and_listed():
    async def talk() -> tuple[str, str, int]:
        async with serving(replying(["one"])) as heard, httpx.AsyncClient(headers=heard.headers) as client:
            url = f"{heard.gateway.url}/v1"
            answer = await client.post(f"{url}/chat/completions", json={**BODY, "model": "gpt-99/large"})
            named = await client.get(f"{url}/models/gpt-99/large")
            return answer.json()["model"], named.json()["id"], len((await client.get(f"{url}/models")).json()["data"])

    assert asyncio.run(talk()) == ("gpt-99/large", "gpt-99/large", 1)


def test_a_body_of_50_megabytes_is_refused_with_its_size():
    async def talk() -> httpx.Response:
        async with serving(replying([])) as heard, httpx.AsyncClient(headers=heard.headers, timeout=60) as client:
            return await client.post(f"{heard.gateway.url}/v1/messages", content=b"x" * 50_000_000)

    answer = asyncio.run(talk())
    assert answer.status_code == 413 and f"{MAX_BODY:,} bytes" in answer.json()["error"]["message"]


def test_a_compressed_body_is_refused_by_name():
    async def talk() -> httpx.Response:
        async with serving(replying([])) as heard, httpx.AsyncClient(headers=heard.headers) as client:
            url = f"{heard.gateway.url}/v1/messages"
            return await client.post(url, content=gzip.compress(b"{}"), headers={"Content-Encoding": "gzip"})

    answer = asyncio.run(talk())
    assert answer.status_code == 415 and "'gzip'" in answer.json()["error"]["message"]


def test_a_half_read_stream_costs_one_turn_and_the_next_request_another():
    async def talk() -> list[str]:
        async with serving(replying(["one " * 10_000, "two"])) as heard:
            url = f"{heard.gateway.url}/v1/chat/completions"
            async with (
                httpx.AsyncClient(headers=heard.headers, timeout=60) as client,
                client.stream("POST", url, json={**BODY, "stream": True}) as answer,
            ):
                await anext(answer.aiter_raw(100))
            await until(lambda: not any(one.connections for one in heard.gateway.asked))
            async with httpx.AsyncClient(headers=heard.headers, timeout=60) as client:
                messages = [*BODY["messages"], {"role": "user", "content": "b"}]
                last = await client.post(url, json={**BODY, "messages": messages})
            return [last.json()["choices"][0]["message"]["content"], str(len(heard.conversations))]

    assert asyncio.run(talk()) == ["two", "2"]


def test_a_request_after_the_end_finds_no_endpoint():
    async def talk() -> None:
        async with serving(replying(["one"])) as heard, httpx.AsyncClient(headers=heard.headers) as client:
            url = f"{heard.gateway.url}/v1/chat/completions"
            await client.post(url, json=BODY)
        with pytest.raises(httpx.TransportError):
            async with httpx.AsyncClient(headers=heard.headers) as client:
                await client.post(url, json=BODY)

    asyncio.run(talk())


def test_a_policy_that_waits_learns_that_the_program_never_stops():
    async def talk() -> None:
        gateway = Gateway()
        gateway.start()
        async with httpx.AsyncClient(headers={"x-api-key": gateway.token}) as client:
            for _ in range(MAX_REFUSED):
                answer = await client.post(f"{gateway.url}/v1/chat/completions", json={**BODY, "n": 2})
                assert answer.status_code == 400
        try:
            await gateway.next_request()
        finally:
            await gateway.close()

    with pytest.raises(EnvError, match="n=2 is not supported"):
        asyncio.run(talk())


@pytest.mark.parametrize("path", ["chat/completions", "models", "embeddings"])
def test_requests_without_the_key_end_no_episode(path):
    async def talk() -> str:
        async with serving(replying(["one"])) as heard:
            async with httpx.AsyncClient() as client:
                for _ in range(2 * MAX_REFUSED):
                    assert (await client.get(f"{heard.gateway.url}/v1/{path}")).status_code in (401, 405)
                    assert (await client.post(f"{heard.gateway.url}/v1/{path}", json=BODY)).status_code in (401, 405)
            async with httpx.AsyncClient(headers=heard.headers) as client:
                answer = await client.post(f"{heard.gateway.url}/v1/chat/completions", json=BODY)
            return answer.json()["choices"][0]["message"]["content"]

    assert asyncio.run(talk()) == "one"


def test_the_folder_of_a_program_is_its_own(program):
    episode, _ = run(program("ask([user('a')]); assert os.listdir() == []; print('{\"reward\": 1}')"), ["one"])
    assert episode.reward == 1 and Path(sys.executable).exists()


def test_an_answer_is_sent_without_waiting_for_an_acknowledgement():
    """The kernel holds the body of an answer back for 40 ms, unless it is told not to."""
    listener = Gateway()._listener
    with listener, socket.create_connection(listener.getsockname()), listener.accept()[0] as accepted:
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
