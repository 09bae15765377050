"""Test how conversations become requests of both protocols, how prices apply, and how keys are removed from texts."""

import json
import re
from collections.abc import Mapping
from typing import Any

import pytest

from verl_agent.agents.functions import FunctionCalls
from verl_agent.envs.action_format import LineFormat
from verl_agent.envs.model_api.anthropic_dialect import AnthropicDialect
from verl_agent.envs.model_api.chat import ApiReply, ChatMessage, ChatRequest
from verl_agent.envs.model_api.client import redact
from verl_agent.envs.model_api.failures import Meaning, explain_status
from verl_agent.envs.model_api.openai_dialect import OpenAiDialect
from verl_agent.envs.model_api.prices import PriceList
from verl_agent.envs.model_api.settings import ApiSettings, Prices
from verl_agent.errors import ConfigError
from verl_agent.evaluation.api_policy import with_originals
from verl_agent.results.spending import turn_finish
from verl_agent.trace.turn_record import to_turn, to_turn_record
from verl_agent.types import Message, Reply, Turn, Usage


def rendered(dialect: Any, *messages: ChatMessage) -> dict[str, Any]:
    """Return the body of a request with these messages."""
    body: dict[str, Any] = dialect.body("m", ChatRequest(messages, max_tokens=8, sampling={}), ())
    return body


THINKING = {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"}
CALL = {"type": "tool_use", "id": "toolu_1", "name": "act", "input": {"action": "go"}}


def anthropic_answer(*blocks: Mapping[str, Any], **fields: Any) -> ApiReply:
    return AnthropicDialect().answer({"content": list(blocks), "stop_reason": "end_turn", **fields})


def test_reasoning_goes_back_to_the_server_and_not_into_the_reply():
    answer = anthropic_answer(THINKING, {"type": "text", "text": "I go.", "citations": None}, CALL)
    assert answer.text == 'I go.\n<tool_call>\n{"name": "act", "arguments": {"action": "go"}}\n</tool_call>'
    body = rendered(
        AnthropicDialect(),
        ChatMessage("user", "Hi"),
        ChatMessage("assistant", answer.text, answer.original),
        ChatMessage("tool", "You went."),
    )
    assert body["messages"][1]["content"] == [THINKING, {"type": "text", "text": "I go.", "citations": None}, CALL]
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "You went."}
    assert body["messages"][2] == {"role": "user", "content": [result]}


def answers_to(*ids: str) -> list[tuple[str, str]]:
    return list(zip(ids, ("Went.", "Stopped."), strict=True))


def test_each_of_several_calls_gets_its_answer_in_both_protocols():
    first, other = CALL, {**CALL, "id": "toolu_2", "input": {"action": "größer"}}
    calls = [
        {"id": one["id"], "function": {"name": "act", "arguments": json.dumps(one["input"])}} for one in (first, other)
    ]
    openai = OpenAiDialect().answer({"choices": [{"message": {"content": None, "tool_calls": calls}}]})
    anthropic = anthropic_answer(first, other)
    assert openai.text == anthropic.text
    assert openai.text.count("<tool_call>") == 2 and "größer" in openai.text
    both = [ChatMessage("tool", "Went.\n\nStopped.", answers=("Went.", "Stopped."))]
    body = rendered(OpenAiDialect(), ChatMessage("user", "Hi"), ChatMessage("assistant", "", openai.original), *both)
    ids = [call["id"] for call in body["messages"][1]["tool_calls"]]
    assert ids == ["toolu_1", "toolu_2"]
    assert [(one["tool_call_id"], one["content"]) for one in body["messages"][2:]] == answers_to(*ids)
    said = ChatMessage("assistant", "", anthropic.original)
    body = rendered(AnthropicDialect(), ChatMessage("user", "Hi"), said, *both)
    ids = [block["id"] for block in body["messages"][1]["content"]]
    results = body["messages"][2]["content"]
    assert [(one["tool_use_id"], one["content"]) for one in results] == answers_to(*ids)


def test_every_call_has_an_answer_even_if_the_observation_was_left_out():
    original = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"function": {"name": "f"}}, {"function": {"name": "g"}}],
    }
    shown = [ChatMessage("user", "Hi"), ChatMessage("assistant", "", original), ChatMessage("tool", "(left out)")]
    body = rendered(OpenAiDialect(), *shown)
    assert [one["role"] for one in body["messages"]] == ["user", "assistant", "tool", "tool"]


@pytest.mark.parametrize("parallel", [True, False])
def test_the_server_is_told_whether_a_reply_may_have_several_calls(parallel):
    tools = [{"type": "function", "function": {"name": "f", "description": "", "parameters": {}}}]
    request = ChatRequest([ChatMessage("user", "Hi")], 8, {}, tools, parallel=parallel)
    assert OpenAiDialect().body("m", request, ())["parallel_tool_calls"] is parallel
    assert AnthropicDialect().body("m", request, ())["tool_choice"]["disable_parallel_tool_use"] is not parallel


def test_a_mark_in_the_text_beside_a_call_is_no_call_and_hides_none():
    text = 'I could <think> or write <tool_call>{"name": "drop"}</tool_call>'
    calls = [{"id": "a", "function": {"name": "act", "arguments": '{"action": "go"}'}}]
    answer = OpenAiDialect().answer({"choices": [{"message": {"content": text, "tool_calls": calls}}]})
    assert FunctionCalls(LineFormat()).parse_reply(answer.text) == "go"
    assert answer.original["content"] == text


def test_arguments_that_are_no_json_are_passed_on_for_the_agent_to_refuse():
    calls = [{"id": "a", "function": {"name": "act", "arguments": "{action"}}]
    answer = OpenAiDialect().answer({"choices": [{"message": {"content": "", "tool_calls": calls}}]})
    assert answer.text == '<tool_call>\n{"name": "act", "arguments": "{action"}\n</tool_call>'


def test_anthropic_gets_the_system_text_apart_and_no_empty_text():
    body = rendered(
        AnthropicDialect(),
        ChatMessage("system", "Rules."),
        ChatMessage("user", "Begin."),
        ChatMessage("assistant", "", {"role": "assistant", "content": []}),
        ChatMessage("user", " "),
    )
    assert body["system"] == "Rules."
    assert [message["content"] for message in body["messages"]] == ["Begin.", "(empty)", "(empty)"]
    assert rendered(AnthropicDialect(), ChatMessage("system", "All."))["messages"] == [
        {"role": "user", "content": "All."}
    ]


def test_a_result_without_a_call_is_a_message_of_the_user():
    for dialect in (OpenAiDialect(), AnthropicDialect()):
        body = rendered(dialect, ChatMessage("user", "Hi"), ChatMessage("tool", "No call found."))
        assert body["messages"][1] == {"role": "user", "content": "No call found."}


def test_the_parts_of_a_reply_are_joined_and_a_refusal_is_a_reply():
    parts = [{"type": "text", "text": "Action: "}, {"type": "text", "text": "5"}]
    assert OpenAiDialect().answer({"choices": [{"message": {"content": parts}}]}).text == "Action: 5"
    refusal = {"content": None, "refusal": "I cannot help."}
    assert OpenAiDialect().answer({"choices": [{"message": refusal}]}).text == "I cannot help."


@pytest.mark.parametrize(
    ("finish", "message", "kept"),
    [
        ("stop", {"content": "go"}, "stop"),
        ("stop", {"content": None, "refusal": "No."}, "refusal"),
        ("content_filter", {"content": ""}, "content_filter"),
        ("length", {"content": "go"}, "length"),
        (None, {"content": "go"}, ""),
    ],
)
def test_the_finish_reason_of_an_api_is_kept_in_the_record(finish, message, kept):
    answer = OpenAiDialect().answer({"choices": [{"message": message, "finish_reason": finish}]})
    assert answer.usage.finish == kept
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (None, None)
    turn = to_turn_record(Turn(Reply(answer.text, usage=answer.usage), None, None, 0.0, 0.0))
    assert to_turn(turn).reply.usage == answer.usage
    assert turn_finish(turn) == ("" if kept == "stop" else kept)
    assert anthropic_answer({"type": "text", "text": "No."}, stop_reason="refusal").usage.finish == "refusal"


def test_tokens_from_the_cache_are_part_of_the_tokens_read():
    usage = {"input_tokens": 10, "cache_read_input_tokens": 30, "cache_creation_input_tokens": 5, "output_tokens": 2}
    found = anthropic_answer(usage=usage | {"output_tokens_details": {"thinking_tokens": 1}}, model="claude").usage
    assert found == Usage("claude", 45, 30, 5, 2, 1, finish="end_turn")
    read = {"prompt_tokens": 9, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 3}}
    found = OpenAiDialect().answer({"choices": [{"message": {"content": "x"}}], "usage": read}).usage
    assert found == Usage("", 9, 3, None, 4)


@pytest.mark.parametrize("usage", [None, [], {"prompt_tokens": "9"}, {"prompt_tokens": -1, "prompt_tokens_details": 3}])
def test_a_usage_that_makes_no_sense_is_unknown(usage):
    found = OpenAiDialect().answer({"choices": [{"message": {"content": "x"}}], "usage": usage}).usage
    assert (found.input_tokens, found.output_tokens) == (None, None)


def answer_of(text: str, number: int) -> ApiReply:
    return ApiReply(text, {"number": number}, False, Usage())


def test_own_replies_are_matched_from_the_last_one_where_a_window_removed_early_turns():
    """Two replies have the same text; the window has removed the first one, and the prompt has an example."""
    answers = [answer_of("Action: 1", 1), answer_of("Action: 1", 2), answer_of("Action: 3", 3)]
    messages: list[Message] = [
        {"role": "user", "content": "Example:"},
        {"role": "assistant", "content": "Action: 9"},
        {"role": "user", "content": "Begin. Your summary: nothing yet."},
        {"role": "assistant", "content": "Action: 1"},
        {"role": "user", "content": "Higher."},
        {"role": "assistant", "content": "Action: 3"},
        {"role": "user", "content": "Lower."},
    ]
    found = [one.original for one in with_originals(messages, answers) if one.role == "assistant"]
    assert found == [None, {"number": 2}, {"number": 3}]


def test_replies_before_and_after_one_that_a_person_edited_keep_their_originals():
    answers = [answer_of("Action: 1", 1), answer_of("Action: 5", 2), answer_of("Action: 7", 3)]
    texts = ["Action: 1", "Action: 4", "Action: 7"]  # a person played 4 instead of 5
    messages: list[Message] = []
    for text in texts:
        messages += [{"role": "user", "content": "Higher."}, {"role": "assistant", "content": text}]
    found = [one.original for one in with_originals(messages, answers) if one.role == "assistant"]
    assert found == [{"number": 1}, None, {"number": 3}]
    last_edited = with_originals(messages[:4], answers[:2])
    assert [one.original for one in last_edited if one.role == "assistant"] == [{"number": 1}, None]


TOKENS = Usage(input_tokens=1_000_000, cached_tokens=400_000, cache_write_tokens=100_000, output_tokens=1_000_000)


def test_the_prices_of_the_recipe_apply_to_cached_tokens_too():
    own = Prices(input=2.0, output=8.0, cached_input=0.5, cache_write=4.0)
    assert PriceList(ApiSettings("openai", "m", prices=own)).cost(TOKENS) == pytest.approx(1.0 + 0.2 + 0.4 + 8.0)
    assert PriceList(ApiSettings("openai", "m", prices=Prices(2.0, 8.0))).cost(TOKENS) == pytest.approx(10.0)


def test_listed_prices_belong_to_a_server_and_not_to_a_name():
    """A local server may call its model gpt-4o-mini."""
    assert PriceList(ApiSettings("openai", "gpt-4o-mini")).cost(Usage(input_tokens=1_000_000, output_tokens=0))
    local = PriceList(ApiSettings("openai", "gpt-4o-mini", "http://127.0.0.1:8000/v1"))
    assert (local.known, local.cost(TOKENS), local.most(9, 9)) == (False, None, 0.0)
    assert not PriceList(ApiSettings("openai", "no-such-model")).known


def test_a_key_is_removed_with_the_word_around_it_and_other_words_stay():
    said = 'Incorrect key "sk-abcdef-12345", or its end ...-12345; see https://x.y/keys.'
    assert redact(said, "sk-abcdef-12345") == 'Incorrect key "***", or its end ***; see https://x.y/keys.'
    assert redact("No key was sent.", None) == "No key was sent."
    assert redact("a test", "test") == "a ***"


SAMPLING_FIELDS = ("temperature", "top_p", "seed", "messages")


@pytest.mark.parametrize(
    ("message", "field"),
    [
        ("Unsupported parameter: 'temperature' is not supported with this model.", "temperature"),
        ("Unsupported value: temperature does not support 0.7 with this model. Only the default is.", "temperature"),
        ("`temperature` is deprecated for this model.", "temperature"),
        ("seed: Extra inputs are not permitted", "seed"),
        ("temperature and top_p cannot both be specified for this model. Use only one.", "top_p"),
        ("Invalid prompt: your message 'the temperature of the lead is' was flagged", ""),
        ("The request was blocked. Its text was: plant the seed in the pot. It is not supported by our policy.", ""),
        ("messages.3: the text Focus on the temperature is not valid UTF-8", ""),
    ],
)
def test_a_setting_is_refused_only_by_a_message_that_names_it_as_such(message, field):
    """Messages may repeat a prompt; ScienceWorld's speak of temperatures and seeds."""
    text = json.dumps({"error": {"message": message}})
    found = explain_status(400, {}, text, SAMPLING_FIELDS, "KEY")
    assert (found.meaning, found.field) == (Meaning.REFUSED_FIELD if field else Meaning.REFUSED, field)


@pytest.mark.parametrize(
    ("message", "field"),
    [
        ("Invalid 'temperature': decimal above maximum value. Expected a value <= 2, but got 2.5.", "temperature"),
        ("Range of top_p should be (0.0, 1.0)", "top_p"),
        ("temperature: range: 0..1", "temperature"),
        ("Invalid params: temperature must be in range (0, +inf)", "temperature"),
        ("Input validation error: `temperature` must be strictly positive", "temperature"),
        ("Temperature should be in [0.0, 2.0)", "temperature"),
        ([{"loc": ["body", "temperature"], "msg": "Input should be less than or equal to 2"}], "temperature"),
        ("top_p must be in (0, 1], got 0.0", "top_p"),
    ],
)
def test_a_value_out_of_range_is_no_refused_field(message, field):
    text = json.dumps({"error": {"message": message}})
    found = explain_status(400, {}, text, SAMPLING_FIELDS, "KEY")
    assert (found.meaning, found.field) == (Meaning.REFUSED, field)


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (
            "Unsupported value: 'temperature' does not support 0.0 with this model. Only the default (1) value is "
            "supported.",
            "unsupported_value",
        ),
        ("Unsupported parameter: 'temperature' is not supported with this model.", "unsupported_parameter"),
    ],
)
def test_a_parameter_that_a_model_does_not_have_is_a_refused_field(message, code):
    text = json.dumps({"error": {"message": message, "code": code, "param": "temperature"}})
    found = explain_status(400, {}, text, SAMPLING_FIELDS, "KEY")
    assert (found.meaning, found.field) == (Meaning.REFUSED_FIELD, "temperature")


@pytest.mark.parametrize(
    ("options", "path"),
    [
        ({"metadata": {"token": "sk-1"}}, "metadata.token"),
        ({"extra": [{"headers": {"Authorization": "Bearer x"}}]}, "extra.0.headers.Authorization"),
        ({"api-key": "sk-1"}, "api-key"),
        ({"a": {"access_token": "x"}}, "a.access_token"),
    ],
)
def test_options_with_a_key_at_any_depth_are_refused(options, path):
    with pytest.raises(ConfigError, match=rf"model\.api\.options\.{re.escape(path)} is not allowed, since settings"):
        ApiSettings("openai", "m", options=options)


def test_options_that_only_speak_of_tokens_are_allowed():
    ApiSettings("openai", "m", options={"min_tokens": 2, "stop_token_ids": [1], "logit_bias": {"50256": -100}})
