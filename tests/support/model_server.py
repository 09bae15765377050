"""Server of a fake model, with the protocols of OpenAI and Anthropic, that fails on demand.

It checks requests as the real servers do: the key, the pairing of function calls and results, texts that are empty.
"""

import asyncio
import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

KEY = "sk-fake-7f3b9a51c0de"
"""Key that the server accepts."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One bad answer.

    Attributes:
        status: status code; 200 for an answer that is broken in another way.
        body: body of the answer; an object becomes JSON.
        headers: further headers.
        hang_s: seconds before the answer.
        cut: end the connection after half of the body.
    """

    status: int = 200
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    hang_s: float = 0.0
    cut: bool = False


def error(status: int, message: str, code: str = "", param: str = "", **headers: str) -> Fault:
    """Return an error in OpenAI's form."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Fault(status, {"error": {"message": message, "type": "error", "code": code, "param": param}}, named)


@dataclass(frozen=True, slots=True)
class Said:
    """Message of a request in a form that both protocols share."""

    role: str
    text: str
    call: Mapping[str, Any] | None = None


Model = Callable[[Sequence[Said]], str | Mapping[str, Any]]
"""Returns a text, or a function call with `name` and `arguments`."""


def binary_search(messages: Sequence[Said]) -> str:
    """Return the next guess of GuessNumber, as the conversation so far allows it."""
    low, high, guess = 1, int(re.findall(r"1 to (\d+)", messages[0].text)[0]), 0
    for message in messages:
        if message.role == "assistant":
            guess = int(re.findall(r"-?\d+", message.text)[-1])
        elif message.text.startswith("Higher"):
            low = guess + 1
        elif message.text.startswith("Lower"):
            high = guess - 1
    return f"Action: {(low + high) // 2}"


class ModelServer:
    """Server of one model."""

    def __init__(
        self,
        model: Model = binary_search,
        faults: Sequence[Fault | None] = (),
        refused: Sequence[str] = (),
        key: str | None = None,
        usage: bool = True,
        delay_s: float = 0.0,
    ) -> None:
        self.model, self.faults, self.refused = model, list(faults), refused
        self.key, self.usage, self.delay_s = key, usage, delay_s
        self.bodies: list[dict[str, Any]] = []
        """Bodies of the requests that got a reply."""
        self.all_bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.in_flight = self.most_in_flight = 0
        self.url = ""

    @contextmanager
    def running(self) -> Iterator["ModelServer"]:
        """Run the server in a thread; `url` is its base URL without `/v1`."""
        loop, ready = asyncio.new_event_loop(), threading.Event()
        thread = threading.Thread(target=self._run, args=(loop, ready), daemon=True)
        thread.start()
        assert ready.wait(10)
        try:
            yield self
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(10)

    def _run(self, loop: asyncio.AbstractEventLoop, ready: threading.Event) -> None:
        asyncio.set_event_loop(loop)
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._openai)
        app.router.add_post("/v1/messages", self._anthropic)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        loop.run_until_complete(runner.setup())
        site = web.TCPSite(runner, "127.0.0.1", 0)
        loop.run_until_complete(site.start())
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        ready.set()
        loop.run_forever()
        loop.run_until_complete(runner.cleanup())
        loop.close()

    async def _openai(self, request: web.Request) -> web.StreamResponse:
        def answer(said: str | Mapping[str, Any], read: int) -> dict[str, Any]:
            message: dict[str, Any] = {"role": "assistant", "content": said if isinstance(said, str) else None}
            if not isinstance(said, str):
                function = {"name": said["name"], "arguments": json.dumps(said["arguments"])}
                message["tool_calls"] = [{"id": "abc", "type": "function", "function": function}]
            value: dict[str, Any] = {"id": "1", "object": "chat.completion", "created": 1, "model": "fake-2026"}
            value["choices"] = [{"index": 0, "message": message, "finish_reason": "stop"}]
            written = len(str(said)) // 4
            if self.usage:
                value["usage"] = {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}
            return value

        return await self._reply(request, _openai_messages, answer)

    async def _anthropic(self, request: web.Request) -> web.StreamResponse:
        def answer(said: str | Mapping[str, Any], read: int) -> dict[str, Any]:
            block = {"type": "text", "text": said} if isinstance(said, str) else {"type": "tool_use", "id": "toolu_1"}
            if not isinstance(said, str):
                block |= {"name": said["name"], "input": said["arguments"]}
            value = {"id": "1", "type": "message", "role": "assistant", "model": "fake-2026", "content": [block]}
            if self.usage:
                value["usage"] = {"input_tokens": read, "output_tokens": len(str(said)) // 4}
            return value | {"stop_reason": "end_turn", "stop_sequence": None}

        assert request.headers["anthropic-version"]
        return await self._reply(request, _anthropic_messages, answer)

    async def _reply(
        self,
        request: web.Request,
        read: Callable[[dict[str, Any]], list[Said]],
        answer: Callable[[str | Mapping[str, Any], int], dict[str, Any]],
    ) -> web.StreamResponse:
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        body = await request.json()
        self.all_bodies.append(body)
        self.headers.append(dict(request.headers))
        if self.key is not None and token != self.key:
            return _json(401, error(401, f"Incorrect API key provided: {token}", "invalid_api_key").body)
        fault = self.faults.pop(0) if self.faults else None
        if fault is not None:
            return await _bad_answer(request, fault)
        for name in self.refused:
            if name in body:
                return _json(400, error(400, f"Unsupported parameter: '{name}'.", param=name).body)
        try:
            messages = read(body)
        except AssertionError as problem:
            return _json(400, error(400, f"invalid request: {problem}").body)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        await asyncio.sleep(self.delay_s)
        self.in_flight -= 1
        self.bodies.append(body)
        return _json(200, answer(self.model(messages), len(json.dumps(body)) // 4))


def _openai_messages(body: Mapping[str, Any]) -> list[Said]:
    said: list[Said] = []
    called = None
    for message in body["messages"]:
        if called is not None:
            assert message["role"] == "tool" and message["tool_call_id"] == called, "a call without its result"
        else:
            assert message["role"] != "tool", "a result without its call"
        calls = message.get("tool_calls") or []
        called = calls[0]["id"] if calls else None
        call = calls[0]["function"] if calls else None
        said.append(Said(message["role"], message["content"] or json.dumps(call), call))
    return said


def _anthropic_messages(body: Mapping[str, Any]) -> list[Said]:
    said = [Said("system", body["system"])] if "system" in body else []
    called = None
    for message in body["messages"]:
        blocks = message["content"]
        if isinstance(blocks, str):
            blocks = [{"type": "text", "text": blocks}]
        assert blocks, "content without blocks"
        for block in blocks:
            kind = block["type"]
            if called is not None:
                assert kind == "tool_result" and block["tool_use_id"] == called, "a call without its result"
                called = None
            if kind == "text":
                assert block["text"].strip(), "an empty text"
                said.append(Said(message["role"], block["text"]))
            elif kind == "tool_result":
                said.append(Said("tool", block["content"]))
            elif kind == "tool_use":
                called = block["id"]
                said.append(Said("assistant", json.dumps(block["input"]), block))
    return said


async def _bad_answer(request: web.Request, fault: Fault) -> web.StreamResponse:
    await asyncio.sleep(fault.hang_s)
    text = fault.body if isinstance(fault.body, str) else json.dumps(fault.body)
    if not fault.cut:
        return web.Response(status=fault.status, text=text, headers=dict(fault.headers))
    response = web.StreamResponse(headers={"Content-Length": str(2 * len(text))})
    await response.prepare(request)
    await response.write(text.encode())
    assert request.transport is not None
    request.transport.abort()
    return response


def _json(status: int, value: Any) -> web.Response:
    return web.json_response(value, status=status)
