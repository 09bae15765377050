"""Test that fields of a thinking model go back unchanged, and that a refused request ends its episode and no other."""

import asyncio
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from tests.support.api_evaluations import KINDS, evaluated, guess_by_call, prepared
from tests.support.model_server import Fault, ModelServer, Said, binary_search, error
from tests.support.thinking_server import ThinkingServer
from verl_agent.envs.model_api.chat import ApiReply, ChatMessage, ChatRequest
from verl_agent.envs.model_api.failures import Meaning, explain_status
from verl_agent.envs.model_api.openai_dialect import OpenAiDialect
from verl_agent.errors import ConfigError, EnvErrorLimitError
from verl_agent.evaluation.run import play_pending, report_results

AGENTS = {
    "functions": "tools",
    "texts": "act",
    "observations left out": {"name": "tools", "context": {"keep": "last", "turns": 1}},
    "old turns left out": {"name": "tools", "context": {"keep": "summary", "turns": 1}},
}


def slow_search(messages: list[Said]) -> Any:
    """Count up from 1, so that episodes are long, by a function or as text."""
    called = any(one.call for one in messages)
    guess = 1 + sum(one.role == "assistant" for one in messages)
    return {"name": "act", "arguments": {"action": str(guess)}} if called or len(messages) == 2 else f"Action: {guess}"


def first_guess_wrong(messages: list[Said]) -> str:
    """Guess a number that is never right."""
    return "Action: 0"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("agent", AGENTS.values(), ids=AGENTS)
def test_what_a_thinking_model_sent_goes_back_unchanged(tmp_path, kind, agent):
    model = binary_search if agent == "act" else slow_search
    with ThinkingServer(model).running() as server:
        records = evaluated(tmp_path, server, kind, agent=agent).records()
    assert server.refusals == 0 and len(records) == 4
    assert max(len(record["turns"]) for record in records) > 2


@pytest.mark.parametrize("kind", KINDS)
def test_an_interrupted_evaluation_sends_the_fields_of_earlier_starts_back(tmp_path, kind):
    async def stop_after(server: ThinkingServer, replies: int) -> None:
        url = server.url + ("/v1" if kind == "openai" else "")
        first = prepared(tmp_path, {"kind": kind, "base_url": url}, agent="tools", concurrency=1)
        play = asyncio.create_task(play_pending(first, Console(quiet=True)))
        while len(server.bodies) < replies:
            await asyncio.sleep(0.001)
        play.cancel()
        await asyncio.gather(play, return_exceptions=True)

    with ThinkingServer(slow_search, delay_s=0.01).running() as server:
        asyncio.run(stop_after(server, replies=3))
        evaluated(tmp_path, server, kind, agent="tools", concurrency=1)
    assert server.refusals == 0 and len(server.sent) - 2 <= sum(len(body["messages"]) > 0 for body in server.bodies)


REFUSALS = [
    ("openai", "reasoning", "'messages.2' : property 'reasoning' is unsupported"),
    ("openai", "reasoning_content", "The reasoning_content field must not be sent in input messages."),
    ("openai", "vendor_state", "Unknown parameter: 'messages[2].vendor_state'."),
    (
        "openai",
        "extra_content",
        'Invalid JSON payload received. Unknown name "extra_content" at messages[2]: Cannot find',
    ),
    ("openai", "reasoning_details", "body.messages.2.assistant.reasoning_details: Extra inputs are not permitted"),
    ("anthropic", "caller", "messages.1.content.2.tool_use.caller: Extra inputs are not permitted"),
    ("anthropic", "redacted_thinking", "messages.1: blocks of type redacted_thinking are not supported"),
]


@pytest.mark.parametrize(("kind", "field", "wording"), REFUSALS, ids=[field for _, field, _ in REFUSALS])
def test_a_field_that_a_server_refuses_is_dropped_once_and_said(tmp_path, kind, field, wording):
    with ThinkingServer(guess_by_call, field, wording).running() as server:
        evaluation = evaluated(tmp_path, server, kind, agent="tools", concurrency=1, max_tasks=6)
        assert server.refusals == 1
        records = evaluated(tmp_path, server, kind, agent="tools", concurrency=1, max_tasks=8).records()
    assert server.refusals == 1, "a second start remembers it"
    assert [record["success"] for record in records] == [True] * 8
    kept = {"reasoning_content", "signature"} - {field}
    assert any(name in str(server.bodies[-1]["messages"]) for name in kept)
    report_results(evaluation, console := Console(record=True, width=200, file=StringIO()))
    assert f"messages.{field}" in console.export_text()


@pytest.mark.parametrize(
    "message",
    [
        "The `reasoning_content` in the thinking mode must be passed back to the API.",
        "messages.1.reasoning_content: Field required",
        "Invalid parameter: reasoning_content is missing in assistant tool call message at index 2",
        "Function call is missing a thought_signature in functionCall parts. This is required for tools.",
        "messages.1.content.0: Invalid `signature` in `thinking` block",
        "`thinking` blocks in the latest assistant message cannot be modified.",
    ],
)
def test_a_field_that_a_server_misses_is_not_dropped(message):
    extra = {"reasoning_content", "thought_signature", "thinking", "signature"}
    found = explain_status(400, {}, message, ("tools", "messages"), None, extra, called=True)
    assert (found.meaning, found.kind) == (Meaning.REFUSED, "status 400")


def test_a_call_without_an_id_gets_one_and_a_message_without_text_stays_valid():
    calls = [{"function": {"name": "act", "arguments": ""}, "id": ""}]
    call = OpenAiDialect().answer({"choices": [{"message": {"content": None, "tool_calls": calls}}]})
    silent = OpenAiDialect().answer({"choices": [{"message": {"content": None, "tool_calls": [], "reasoning": "x"}}]})
    said = [ChatMessage("user", "Hi")]
    for answer in (call, silent):
        said += [ChatMessage("assistant", answer.text, answer.original), ChatMessage("tool", "Done.")]
    messages = OpenAiDialect().body("m", ChatRequest(said, 8, {}), ())["messages"]
    assert messages[1]["tool_calls"][0]["id"] == messages[2]["tool_call_id"] == "call00001"
    assert messages[1]["tool_calls"][0]["function"]["arguments"] == "{}"
    assert messages[3] == {"role": "assistant", "content": "", "reasoning": "x"} and messages[4]["role"] == "user"


class PickyServer(ModelServer):
    """Refuses each request of the tasks from 1 to `high` that has `messages` messages or more."""

    def __init__(self, fault: Fault, high: int = 10, messages: int = 2, **more: Any) -> None:
        super().__init__(**{"model": first_guess_wrong, **more})
        self.fault, self.high, self.messages = fault, high, messages
        self.refusals = 0

    async def _reply(self, request: Any, read: Any, answer: Any) -> Any:
        body = await request.json()
        if f"from 1 to {self.high}." in str(body["messages"][0]) and len(body["messages"]) >= self.messages:
            self.refusals += 1
            self.faults.insert(0, self.fault)
        return await super()._reply(request, read, answer)


KIND_OF = [
    (error(400, "Invalid value."), "status 400"),
    (error(422, "Unprocessable."), "status 422"),
    (error(400, "The response was filtered.", "content_filter"), "content filter"),
    (error(403, "Your input was flagged by moderation."), "content filter"),
    (error(400, "Content Exists Risk"), "content filter"),
]


@pytest.mark.parametrize("messages", [2, 4], ids=["first turn", "second turn"])
@pytest.mark.parametrize(("fault", "kind"), KIND_OF, ids=[str(fault.body)[23:40] for fault, _ in KIND_OF])
def test_a_refused_request_ends_its_episode_with_a_name_and_the_evaluation_ends(tmp_path, fault, kind, messages):
    with PickyServer(fault, messages=messages).running() as server:
        first = evaluated(tmp_path, server, concurrency=1, max_tasks=12)
        assert server.refusals >= 5 * 2
        refusals = server.refusals
        again = evaluated(tmp_path, server, concurrency=1, max_tasks=12)
        again.errors.check()
    assert again.pending == [] and server.refusals == refusals, "the same command only reports"
    records = first.records()
    ends = [(record["stop"], record["error"].partition(":")[0]) for record in records]
    assert sorted(ends) == sorted([("request_refused", kind)] * 5 + [("turn_limit", "")] * 7)
    report_results(again, console := Console(record=True, width=200, file=StringIO()))
    shown = console.export_text()
    assert "refused: 5 of 12 episodes are in no rate" in shown and f"({kind} 5)" in shown


def test_a_first_request_that_is_refused_lets_the_others_play_and_ends_refused(tmp_path):
    with PickyServer(error(400, "Invalid value."), high=7).running() as server:
        evaluation = evaluated(tmp_path, server, concurrency=1, max_tasks_per_category=1)
    stops = [(record["task"], record["stop"]) for record in evaluation.records()]
    assert stops == [("10:1", "turn_limit"), ("7:1", "request_refused")]


def test_a_server_that_refuses_everything_stops_the_evaluation(tmp_path):
    later = PickyServer(error(400, "Bad template."), high=7, messages=4)
    wanted = r"of 4 planned.*request_refused 3.*status 400: Bad template"
    with later.running(), pytest.raises(EnvErrorLimitError, match=wanted):
        evaluated(tmp_path, later, concurrency=1)
    at_once = PickyServer(error(400, "Unknown option."), high=7)
    wanted = r"status 400: Unknown option\. Check model\.api\.name.*options"
    with at_once.running(), pytest.raises(ConfigError, match=wanted):
        evaluated(tmp_path / "first", at_once, concurrency=1)
    assert at_once.refusals == 3 * 2 and not (tmp_path / "first" / "episodes.jsonl").read_text()


def test_a_model_that_vanishes_stops_the_evaluation_and_no_episode_is_refused(tmp_path):
    server = PickyServer(error(404, "The model does not exist."))
    with server.running(), pytest.raises(ConfigError, match=r"status 404: The model .* Check model\.api\.name"):
        evaluated(tmp_path, server, concurrency=1, max_tasks=12)
    earlier = prepared(tmp_path, {"base_url": f"{server.url}/v1"}, concurrency=1, max_tasks=12).earlier
    assert {record["stop"] for record in earlier} == {"turn_limit"}


def test_a_refusal_that_passes_is_no_refusal(tmp_path):
    with ModelServer(faults=[None, error(400, "Try again.")]).running() as server:
        records = evaluated(tmp_path, server, concurrency=1).records()
    assert {record["stop"] for record in records} == {"terminated"}


def test_a_reply_of_thoughts_alone_ends_with_a_text_for_anthropic():
    from verl_agent.envs.model_api.anthropic_dialect import AnthropicDialect

    thought = {"type": "thinking", "thinking": "Hm.", "signature": "s"}
    answer = AnthropicDialect().answer({"content": [thought], "stop_reason": "max_tokens"})
    assert isinstance(answer, ApiReply)
    said = [ChatMessage("user", "Hi"), ChatMessage("assistant", "", answer.original), ChatMessage("user", "Go on.")]
    blocks = AnthropicDialect().body("m", ChatRequest(said, 8, {}), ())["messages"][1]["content"]
    assert blocks == [thought, {"type": "text", "text": "(empty)"}]
