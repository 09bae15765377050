"""Test random conversations with the vendors' clients: each parses every answer, and the policy reads its own words.

A conversation has texts, thoughts, calls, cut and stopped replies, whole and in streams. What the client returns of a
reply comes back in another form: arguments serialised again, split contents, other white space, without its thought.
"""

import asyncio
import json
import os
import random
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.support.gateways import Heard, serving
from verl_agent.envs.program.conversation import CountedReply, Counts
from verl_agent.envs.program.gateway import Asked

CONVERSATIONS = int(os.environ.get("CONVERSATIONS", "40"))
TEXTS = (
    "a",
    "I look.",
    " leading and trailing \n",
    "größe “木” 🪵🏽 e\u0301",
    'quotes " and \\ and {braces} <b>',
    "data: [DONE]\n\n",
    "line\r\nline\u2028separator\ttab",
    "[conversation] no",
    "<think>",
    "word " * 400,
    "<tool_response>\nfake\n</tool_response>",
)
VALUES: tuple[Any, ...] = (
    "north",
    "größe 木 🪵",
    "",
    0,
    -1.5,
    1e20,
    True,
    None,
    [],
    {},
    [1, {"a": [None]}],
    {"x": {"y": '"\\\n'}},
)
NAMES = ("look", "go_to", "Bash")
STOP = "ENDE"


@dataclass
class Reply:
    """Reply of the policy, and what a client must read in it.

    Attributes:
        calls: name and arguments of each call.
        end: `calls`, `cut`, `stopped` or `end`.
    """

    text: str
    shown: str
    thought: str
    calls: list[tuple[str, dict[str, Any]]]
    counts: Counts
    end: str


@dataclass
class Read:
    """Answer as a client read it: the same as in `Reply`, the ids of the calls, and the client's own object."""

    shown: str
    thought: str
    calls: list[tuple[str, dict[str, Any]]]
    counts: tuple[int, int, int]
    end: str
    ids: list[str]
    whole: Any


@dataclass
class Talk:
    """One conversation by one client.

    Attributes:
        said: messages in the form of the dialect.
        tools: the request offers functions.
        streams: answers arrive as streams.
    """

    heard: Heard
    rng: random.Random
    said: list[Any] = field(default_factory=list)
    tools: bool = False
    streams: bool = False
    stops: bool = False

    def coin(self) -> bool:
        return self.rng.random() < 0.5


def make_reply(rng: random.Random, tools: bool, stops: bool) -> Reply:
    thought = rng.choice(TEXTS).strip().replace("<think>", "") if rng.random() < 0.3 else ""
    text = "" if rng.random() < 0.1 else rng.choice(TEXTS)
    if text == "<think>" or (text == "" and thought):
        text = "b"
    calls = []
    if tools and rng.random() < 0.6:
        calls = [(rng.choice(NAMES), {"to": rng.choice(VALUES)}) for _ in range(rng.randint(1, 3))]
    separators = rng.choice([None, (",", ":"), (" , ", " : ")])
    written = text
    for name, arguments in calls:
        call = json.dumps(
            {"name": name, "arguments": arguments}, separators=separators, ensure_ascii=rng.random() < 0.5
        )
        written += f"\n<tool_call>\n{call}\n</tool_call>"
    end = "calls" if calls else rng.choice(["end", "cut", "stopped" if stops else "end"])
    written += STOP if end == "stopped" else ""
    counts = Counts(rng.randint(5, 999), rng.randint(0, 5), rng.randint(1, 99), end == "cut")
    whole = f"<think>\n{thought}\n</think>\n\n{written}" if thought else written
    return Reply(whole, text, thought, calls, counts, end)


class Chat:
    """OpenAI's chat completions."""

    def __init__(self, talk: Talk) -> None:
        import openai

        self.talk, self.client = talk, openai.AsyncOpenAI(**talk.heard.openai, max_retries=0)

    def user(self, text: str) -> None:
        halves = [{"type": "text", "text": text[:3]}, {"type": "text", "text": text[3:]}]
        self.talk.said.append({"role": "user", "content": halves if self.talk.coin() else text})

    async def ask(self) -> Read:
        asked: dict[str, Any] = {"model": "any/name", "messages": self.talk.said}
        if self.talk.tools:
            asked["tools"] = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in NAMES]
        if self.talk.stops:
            asked["stop"] = STOP
        if self.talk.streams:
            async with self.client.chat.completions.stream(**asked, stream_options={"include_usage": True}) as events:
                _ = [event async for event in events]
                whole = events.current_completion_snapshot  # the final one is refused where a reply was cut
        else:
            whole = await self.client.chat.completions.create(**asked)
        (choice,), usage = whole.choices, whole.usage
        message = choice.message
        calls = [(one.function.name, json.loads(one.function.arguments)) for one in message.tool_calls or ()]
        assert whole.model == "any/name" and usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
        assert usage.prompt_tokens_details is not None
        return Read(
            message.content or "",
            getattr(message, "reasoning_content", None) or "",
            calls,
            (usage.prompt_tokens, usage.prompt_tokens_details.cached_tokens, usage.completion_tokens),
            {"tool_calls": "calls", "length": "cut", "stop": "end"}[choice.finish_reason],
            [one.id for one in message.tool_calls or ()],
            whole,
        )

    def continue_with(self, read: Read, results: list[str]) -> None:
        message: dict[str, Any] = {"role": "assistant", "content": read.shown or None}
        if self.talk.coin() and read.shown:
            message["content"] = [{"type": "text", "text": read.shown}]
        if self.talk.coin() and read.thought:
            message["reasoning_content"] = read.thought
        if read.calls:
            message["tool_calls"] = [
                {"id": id, "type": "function", "function": {"name": name, "arguments": self._dump(arguments)}}
                for id, (name, arguments) in zip(read.ids, read.calls, strict=True)
            ]
        elif not read.shown:
            message["content"] = ""
        self.talk.said.append(message)
        for id, result in zip(read.ids, results, strict=True):
            self.talk.said.append({"role": "tool", "tool_call_id": id, "content": result})

    def _dump(self, value: Any) -> str:
        return json.dumps(value, ensure_ascii=self.talk.coin(), separators=(",", ":") if self.talk.coin() else None)


class Messages:
    """Anthropic's messages."""

    def __init__(self, talk: Talk) -> None:
        import anthropic

        self.talk, self.client = talk, anthropic.AsyncAnthropic(**talk.heard.anthropic, max_retries=0)

    def user(self, text: str) -> None:
        content: Any = [{"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}]
        self.talk.said.append({"role": "user", "content": content if self.talk.coin() else text})

    async def ask(self) -> Read:
        asked: dict[str, Any] = {"model": "any/name", "messages": self.talk.said, "max_tokens": 4096}
        asked["thinking"] = {"type": "enabled", "budget_tokens": 1024}
        if self.talk.tools:
            asked["tools"] = [{"name": name, "input_schema": {"type": "object"}} for name in NAMES]
            asked["tool_choice"] = {"type": "auto"}
        if self.talk.stops:
            asked["stop_sequences"] = [STOP]
        if self.talk.streams:
            async with self.client.messages.stream(**asked) as events:
                whole = await events.get_final_message()
        else:
            whole = await self.client.messages.create(**asked)
        usage, calls = whole.usage, [block for block in whole.content if block.type == "tool_use"]
        end = {"tool_use": "calls", "max_tokens": "cut", "end_turn": "end", "stop_sequence": "stopped"}
        assert whole.model == "any/name" and (whole.stop_sequence == STOP) == (whole.stop_reason == "stop_sequence")
        return Read(
            "".join(block.text for block in whole.content if block.type == "text"),
            "".join(block.thinking for block in whole.content if block.type == "thinking"),
            [(block.name, block.input) for block in calls],
            (usage.input_tokens + usage.cache_read_input_tokens, usage.cache_read_input_tokens, usage.output_tokens),
            end[whole.stop_reason],
            [block.id for block in calls],
            whole,
        )

    def continue_with(self, read: Read, results: list[str]) -> None:
        blocks = [block.model_dump() for block in read.whole.content]
        if self.talk.coin():
            blocks = [block for block in blocks if block["type"] != "thinking"]
        self.talk.said.append({"role": "assistant", "content": blocks or ""})
        contents = [result if self.talk.coin() else [{"type": "text", "text": result}] for result in results]
        blocks = [
            {"type": "tool_result", "tool_use_id": id, "content": content}
            for id, content in zip(read.ids, contents, strict=True)
        ]
        if blocks:
            self.talk.said.append({"role": "user", "content": blocks})


class Responses:
    """OpenAI's Responses API, with the whole input or with the id of the last answer."""

    def __init__(self, talk: Talk) -> None:
        import openai

        self.talk, self.client = talk, openai.AsyncOpenAI(**talk.heard.openai, max_retries=0)
        self.by_id, self.previous = talk.coin(), ""

    def user(self, text: str) -> None:
        content: Any = [{"type": "input_text", "text": text}]
        self.talk.said.append({"role": "user", "content": content if self.talk.coin() else text})

    async def ask(self) -> Read:
        asked: dict[str, Any] = {"model": "any/name", "input": self.talk.said, "store": False}
        asked["instructions"] = "Be brief."  # the API does not keep them with an answer
        if self.previous:
            asked["previous_response_id"] = self.previous
        if self.talk.tools:
            own = {"type": "function", "parameters": {}, "strict": False}
            asked["tools"] = [{**own, "name": name} for name in NAMES]
        if self.talk.streams:
            async with self.client.responses.stream(**asked) as events:
                *_, last = [event async for event in events]
                assert last.type in ("response.completed", "response.incomplete")
                whole = last.response
        else:
            whole = await self.client.responses.create(**asked)
        if self.by_id:
            self.previous, self.talk.said = whole.id, []
        calls, usage = [item for item in whole.output if item.type == "function_call"], whole.usage
        assert whole.model == "any/name" and usage.total_tokens == usage.input_tokens + usage.output_tokens
        assert (whole.incomplete_details is not None) == (whole.status == "incomplete")
        return Read(
            whole.output_text,
            "".join(part.text for item in whole.output if item.type == "reasoning" for part in item.summary),
            [(one.name, json.loads(one.arguments)) for one in calls],
            (usage.input_tokens, usage.input_tokens_details.cached_tokens, usage.output_tokens),
            "calls" if calls else {"completed": "end", "incomplete": "cut"}[whole.status],
            [one.call_id for one in calls],
            whole,
        )

    def continue_with(self, read: Read, results: list[str]) -> None:
        items = [item.model_dump(exclude_none=True) for item in read.whole.output]
        if self.talk.coin():
            items = [item for item in items if item["type"] != "reasoning"]
        self.talk.said += [] if self.by_id else items
        for id, result in zip(read.ids, results, strict=True):
            self.talk.said.append({"type": "function_call_output", "call_id": id, "output": result})


async def converse(talk: Talk, client: Any, next_reply: list[Reply]) -> None:
    """Play one conversation, and check each answer and each prompt."""
    talk.tools, talk.streams, rng = talk.coin(), talk.coin(), talk.rng
    talk.stops = talk.coin() and not isinstance(client, Responses)
    client.user(f"{rng.random()} {rng.choice(TEXTS)}")
    before: list[Any] = []
    for _ in range(rng.randint(1, 4)):
        next_reply[:] = [make_reply(rng, talk.tools, talk.stops)]
        wanted, read = next_reply[0], await client.ask()
        heard = [(one["role"], one["content"]) for one in talk.heard.conversations[-1]]
        assert heard[: len(before)] == before  # of a client that dropped nothing, the policy reads its own words
        assert len(heard) == len(before) + 1 or not before
        assert "".join(read.shown.split()) == "".join(wanted.shown.split())
        assert (read.thought, read.calls) == (wanted.thought, wanted.calls)
        assert read.counts == (wanted.counts.prompt, wanted.counts.cached, wanted.counts.written)
        assert read.end == ("end" if isinstance(client, Chat) and wanted.end == "stopped" else wanted.end)
        before = [*heard, ("assistant", wanted.text)]
        results = [rng.choice(TEXTS) for _ in read.ids]
        client.continue_with(read, results)
        if not results:
            client.user(rng.choice(TEXTS))


@pytest.mark.parametrize("dialect", [Chat, Messages, Responses])
def test_the_vendors_client_parses_every_answer_and_the_policy_reads_its_own_words(dialect):
    pytest.importorskip("anthropic" if dialect is Messages else "openai", reason="pip install openai anthropic")
    next_reply: list[Reply] = []

    async def reply(heard: Heard, asked: Asked) -> str:
        return CountedReply(next_reply[0].text, next_reply[0].counts)

    async def play() -> None:
        async with serving(reply) as heard:
            for seed in range(CONVERSATIONS):
                talk = Talk(heard, random.Random(seed))
                client = dialect(talk)
                try:
                    await converse(talk, client, next_reply)
                except Exception as error:
                    raise AssertionError(f"conversation {seed} after {next_reply}") from error
                await client.client.close()

    asyncio.run(play())
