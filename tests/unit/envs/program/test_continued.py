"""Test requests of the Responses API that continue an answer by its id: what the model reads of earlier requests."""

import asyncio
from typing import Any

import pytest

from tests.support.gateways import Heard, replying, serving

openai = pytest.importorskip("openai", reason="pip install openai")


def heard_by_policy(*requests: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the conversation of the last request; each continues the answer to the one before."""

    async def talk(heard: Heard) -> None:
        previous = {}
        async with openai.AsyncOpenAI(**heard.openai, max_retries=0) as client:
            for request in requests:
                answer = await client.responses.create(model="m", **request, **previous)
                previous = {"previous_response_id": answer.id}

    async def play() -> list[tuple[str, str]]:
        async with serving(replying(["one", "two", "three"])) as heard:
            await talk(heard)
            return [(message["role"], message["content"]) for message in heard.conversations[-1]]

    return asyncio.run(play())


CALL = '<tool_call>\n{"name": "go", "arguments": {}}\n</tool_call>'
TOOLS = [{"type": "function", "name": "go", "parameters": {}}]


def developer(text: str) -> dict[str, str]:
    return {"role": "developer", "content": text}


def test_instructions_hold_for_their_own_request():
    """See `instructions` in https://platform.openai.com/docs/api-reference/responses/create."""
    heard = heard_by_policy({"input": "a", "instructions": "old"}, {"input": "b", "instructions": "new"})
    assert heard == [("system", "new"), ("user", "a"), ("assistant", "one"), ("user", "b")]
    assert heard_by_policy({"input": "a", "instructions": "old"}, {"input": "b"})[0] == ("user", "a")


def test_a_developers_message_of_the_input_stays():
    user = {"role": "user", "content": "a"}
    first, *_ = heard_by_policy(
        {"input": [developer("always"), user], "instructions": "old"}, {"input": "b"}, {"input": "c"}
    )
    assert first == ("system", "always")
    heard = heard_by_policy({"input": [developer("always"), user]}, {"input": "b", "instructions": "now"})
    assert heard[0] == ("system", "now\n\nalways")


def test_a_later_developers_message_stays_in_its_place():
    heard = heard_by_policy({"input": "a"}, {"input": [developer("later")]}, {"input": "c"})
    assert [text for _, text in heard] == ["a", "one", "<system>\nlater\n</system>", "two", "c"]


def test_a_reference_to_an_item_of_an_answer_is_that_item():
    """Vercel's AI SDK sends replies that the server has stored in this way."""
    replies = ["<think>hm</think>one", CALL, "three"]

    async def play() -> list[str]:
        async with serving(replying(replies)) as heard, openai.AsyncOpenAI(**heard.openai, max_retries=0) as client:
            given: list[Any] = [{"role": "user", "content": "a"}]
            for more in ({"role": "user", "content": "b"}, {"type": "function_call_output", "output": "ok"}):
                answer = await client.responses.create(model="m", input=given, tools=TOOLS)
                given += [{"type": "item_reference", "id": item.id} for item in answer.output]
                own = {"call_id": answer.output[-1].call_id} if "output" in more else {}
                given.append({**more, **own})
            await client.responses.create(model="m", input=given, tools=TOOLS)
            unknown = {"type": "item_reference", "id": "msg_x"}
            with pytest.raises(openai.BadRequestError, match=r"'msg_x' is part of no answer of this episode\. Send"):
                await client.responses.create(model="m", input=[*given, unknown], tools=TOOLS)
            return [message["content"] for message in heard.conversations[-1] if message["role"] == "assistant"]

    assert asyncio.run(play()) == replies[:2]


def test_anthropics_runner_of_tools_sends_the_whole_conversation():
    """Its first request asks the server to keep the conversation; it does without where the server refuses that."""
    anthropic = pytest.importorskip("anthropic", reason="pip install anthropic")
    call = '<tool_call>\n{"name": "double", "arguments": {"number": 4}}\n</tool_call>'

    @anthropic.beta_async_tool
    async def double(number: int) -> str:
        """Double a number."""
        return str(2 * number)

    async def play() -> list[str]:
        async with serving(replying([call, "8"])) as heard:
            async with anthropic.AsyncAnthropic(**heard.anthropic, max_retries=0) as client:
                asked = {"model": "m", "max_tokens": 99, "messages": [{"role": "user", "content": "go"}]}
                runner = client.beta.messages.tool_runner(tools=[double], **asked)
                assert [answer.stop_reason async for answer in runner] == ["tool_use", "end_turn"]
            return [message["content"] for message in heard.conversations[-1][1:]]

    assert asyncio.run(play()) == ["go", call, "<tool_response>\n8\n</tool_response>"]
