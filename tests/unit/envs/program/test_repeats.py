"""Test that a repeated request is one turn, by whatever client, and that two equal requests are two."""

import asyncio
import json
import socket

import httpx
import pytest

from tests.support.gateways import Heard, replying, serving, until
from verl_agent.envs.program.gateway import Asked

BODY = {"model": "m", "messages": [{"role": "user", "content": "a"}]}
PATIENCE_S = 1.0
"""Seconds after which each client gives up its first request."""


class Repeated:
    """Policy that writes its first reply when the client has asked again."""

    def __init__(self) -> None:
        self.turns = 0

    async def __call__(self, heard: Heard, asked: Asked) -> str:
        self.turns += 1
        if self.turns == 1:
            await until(lambda: sum(one.requests for one in heard.gateway.asked) >= 2)
        return f"reply {self.turns}"


async def by_openai(heard: Heard) -> str:
    import openai

    client = openai.AsyncOpenAI(**heard.openai, timeout=PATIENCE_S, max_retries=3)
    return (await client.chat.completions.create(**BODY)).choices[0].message.content


async def by_openai_responses(heard: Heard) -> str:
    import openai

    client = openai.AsyncOpenAI(**heard.openai, timeout=PATIENCE_S, max_retries=3)
    return (await client.responses.create(model="m", input="a")).output_text


async def by_openai_stream(heard: Heard) -> str:
    import openai

    client = openai.AsyncOpenAI(**heard.openai, timeout=PATIENCE_S, max_retries=3)
    chunks = await client.chat.completions.create(**BODY, stream=True)
    return "".join([chunk.choices[0].delta.content or "" async for chunk in chunks])


async def by_anthropic(heard: Heard) -> str:
    import anthropic

    client = anthropic.AsyncAnthropic(**heard.anthropic, timeout=PATIENCE_S, max_retries=3)
    return (await client.messages.create(**BODY, max_tokens=9)).content[0].text


async def by_httpx(heard: Heard) -> str:
    """Httpx has no retries of its own; programs write a loop."""
    for _ in range(3):
        try:
            async with httpx.AsyncClient(headers=heard.headers, timeout=PATIENCE_S) as client:
                return _text((await client.post(f"{heard.gateway.url}/v1/chat/completions", json=BODY)).json())
        except httpx.TimeoutException:
            continue
    raise AssertionError("no answer")


async def by_litellm(heard: Heard) -> str:
    """LiteLLM repeats a call itself: with the client of OpenAI, which retries nothing, so without its header."""
    import openai

    for _ in range(3):
        try:
            client = openai.AsyncOpenAI(**heard.openai, timeout=PATIENCE_S, max_retries=0)
            return (await client.chat.completions.create(**BODY)).choices[0].message.content
        except openai.APITimeoutError:
            continue
    raise AssertionError("no answer")


async def by_langchain(heard: Heard) -> str:
    """LangChain gives its retries to the client of OpenAI, which it shares among requests."""
    import openai

    client = openai.OpenAI(**heard.openai, timeout=PATIENCE_S, max_retries=3)
    return await asyncio.to_thread(lambda: client.chat.completions.create(**BODY).choices[0].message.content)


async def by_requests(heard: Heard) -> str:
    requests = pytest.importorskip("requests", reason="requests is not installed: pip install requests")
    from urllib3.util import Retry

    def post() -> str:
        with requests.Session() as session:
            session.mount("http://", requests.adapters.HTTPAdapter(max_retries=Retry(3, allowed_methods=None)))
            url = f"{heard.gateway.url}/v1/chat/completions"
            return _text(session.post(url, json=BODY, headers=heard.headers, timeout=PATIENCE_S).json())

    return await asyncio.to_thread(post)


async def by_curl(heard: Heard) -> str:
    command = [
        "curl",
        "-s",
        "--retry",
        "3",
        "--retry-delay",
        "1",
        "--max-time",
        str(PATIENCE_S),
        "-d",
        json.dumps(BODY),
    ]
    command += ["-H", f"Authorization: Bearer {heard.gateway.token}", f"{heard.gateway.url}/v1/chat/completions"]
    try:
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    except FileNotFoundError:
        pytest.skip("curl is not installed: sudo apt-get install curl")
    output, _ = await process.communicate()
    return _text(json.loads(output))


def _text(answer) -> str:
    return answer["choices"][0]["message"]["content"]


CLIENTS = (
    by_openai, by_openai_responses, by_openai_stream, by_anthropic, by_httpx, by_litellm, by_langchain, by_requests,
    by_curl,
)  # fmt: skip


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.__name__.removeprefix("by_"))
def test_a_request_that_a_client_repeats_after_its_own_timeout_is_one_turn(client):
    policy = Repeated()

    async def talk() -> str:
        async with serving(policy) as heard:
            return await client(heard)

    assert (asyncio.run(talk()), policy.turns) == ("reply 1", 1)


def test_equal_requests_at_the_same_time_are_two_turns_and_each_is_repeated_for_itself():
    """Two samples of one prompt may be meant. Both connections are lost, and both are repeated without a header."""
    replies = [asyncio.Event(), asyncio.Event()]
    turns: list[Asked] = []

    async def reply(heard: Heard, asked: Asked) -> str:
        turns.append(asked)
        number = len(turns)
        await replies[number - 1].wait()
        return f"reply {number}"

    async def talk() -> tuple[set[str], int]:
        async with serving(reply) as heard, httpx.AsyncClient(headers=heard.headers, timeout=30) as client:
            url, token = f"{heard.gateway.url}/v1/chat/completions", heard.gateway.token
            lost = [await _asking(heard.gateway.port, token) for _ in range(2)]
            await until(lambda: len(turns) == 1 and len(heard.gateway.asked) == 2)
            for connection in lost:
                connection.close()
            every = heard.gateway.asked
            await until(lambda: all(one.connections == 0 for one in every))
            again = [asyncio.create_task(client.post(url, json=BODY)) for _ in range(2)]
            await until(lambda: all(one.connections == 1 for one in every))
            for event in replies:
                event.set()
            return {_text((await task).json()) for task in again}, len(turns)

    assert asyncio.run(talk()) == ({"reply 1", "reply 2"}, 2)


async def _asking(port: int, token: str) -> socket.socket:
    """Return a connection on which the request was sent."""
    body = json.dumps(BODY).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n"
    connection = socket.create_connection(("127.0.0.1", port))
    connection.sendall(head.encode() + f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
    return connection


def test_an_answer_that_a_client_left_unread_is_given_again():
    async def talk() -> tuple[str, int]:
        async with serving(replying(["reply 1", "reply 2"])) as heard:
            connection = await _asking(heard.gateway.port, heard.gateway.token)
            await until(lambda: len(heard.conversations) == 1)
            (asked,) = heard.gateway.asked
            await until(lambda: asked.deliveries == 1)
            connection.close()  # with the answer unread, so the system resets the connection
            await until(lambda: asked.deliveries == 0)
            async with httpx.AsyncClient(headers=heard.headers, timeout=30) as client:
                answer = await client.post(f"{heard.gateway.url}/v1/chat/completions", json=BODY)
            return _text(answer.json()), len(heard.conversations)

    assert asyncio.run(talk()) == ("reply 1", 1)


@pytest.mark.parametrize(("retries", "turns"), [("1", 1), ("0", 2)])
def test_an_answered_request_is_given_again_only_to_a_client_that_says_that_it_tries_again(retries, turns):
    async def talk() -> tuple[bool, int]:
        async with serving(replying(["reply 1", "reply 2"])) as heard:
            async with httpx.AsyncClient(headers=heard.headers, timeout=30) as client:
                url = f"{heard.gateway.url}/v1/chat/completions"
                first = await client.post(url, json=BODY)
                again = await client.post(url, json=BODY, headers={"X-Stainless-Retry-Count": retries})
            return first.json() == again.json(), len(heard.conversations)

    assert asyncio.run(talk()) == (turns == 1, turns)


def test_a_request_that_streams_repeats_one_that_does_not():
    policy = Repeated()

    async def talk() -> str:
        async with serving(policy) as heard:
            connection = await _asking(heard.gateway.port, heard.gateway.token)
            await until(lambda: policy.turns == 1)
            connection.close()
            async with httpx.AsyncClient(headers=heard.headers, timeout=30) as client:
                body = {**BODY, "stream": True}
                return (await client.post(f"{heard.gateway.url}/v1/chat/completions", json=body)).text

    events = asyncio.run(talk())
    assert '"content": "reply 1"' in events and policy.turns == 1
