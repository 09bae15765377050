"""Test how a reply of the policy becomes the answer that a program reads."""

import pytest

from verl_agent.envs.program import anthropic_messages, openai_chat, openai_responses
from verl_agent.envs.program.conversation import Counts
from verl_agent.envs.program.requests import Kind, Request, Said, to_answer

TOOLS = {"go": {"type": "function", "function": {"name": "go", "parameters": {}}}}
REQUEST = Request((Said("user", "Go."),), tools=TOOLS)


def call(arguments):
    return f'<tool_call>\n{{"name": "go", "arguments": {arguments}}}\n</tool_call>'


@pytest.mark.parametrize("arguments", ["[1]", '[["to", "north"]]', "[]", "false", '"north"', "3", "{"])
def test_a_call_whose_arguments_are_no_object_stays_text(arguments):
    """A client would raise on such a call; as text the program can answer it."""
    answer = to_answer(REQUEST, call(arguments), Counts())
    assert (answer.text, answer.calls) == (call(arguments), ())


def test_a_call_is_read_with_its_arguments():
    (read,) = to_answer(REQUEST, call('{"to": "north"}'), Counts()).calls
    assert (read.name, read.arguments) == ("go", {"to": "north"})


def test_the_mention_of_a_thought_hides_no_call():
    answer = to_answer(REQUEST, f"I look for <think> in the code.\n{call('{}')}", Counts())
    assert (answer.text, len(answer.calls), answer.thought) == ("I look for <think> in the code.", 1, "")


@pytest.mark.parametrize("arguments", ['{"patch": "a"}', '{"input": {"a": 1}}', '{"input": "a", "why": "b"}', "{}"])
def test_a_custom_tool_takes_one_text_and_nothing_else(arguments):
    request = Request((Said("user", "Go."),), tools=TOOLS, kinds={"go": Kind(custom=True)})
    refused = request.refused(call(arguments))
    assert refused is not None and refused.step.info["call_error_wrong_argument"] == 1
    assert to_answer(request, call(arguments), Counts()).calls == ()
    assert request.refused(call('{"input": "a"}')) is None


ENDLESS = {"properties": {"a": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}]}}}


@pytest.mark.parametrize(
    ("schema", "reply", "kind"),
    [
        ({}, "[" * 100_000, "broken_json"),
        ({}, '{"a": 1, "a": 2}', "broken_json"),
        ({}, "[1]", "wrong_argument"),
        ({"type": "array"}, "{}", "wrong_argument"),
        (ENDLESS, '{"a": 1}', "wrong_argument"),
    ],
)
def test_a_reply_without_the_schema_of_its_request_is_answered(schema, reply, kind):
    refused = Request((Said("user", "Go."),), schema=schema).refused(reply)
    assert refused is not None and refused.step.info[f"call_error_{kind}"] == 1


def test_a_reply_with_the_schema_of_its_request_passes():
    assert Request((Said("user", "Go."),), schema={"type": "array"}).refused("<think>hm</think>[1]") is None


MADE = [
    {"id": name, "type": "function", "function": {"name": "go", "arguments": "{}"}} for name in ("call_1", "call_2")
]
USED = [{"type": "tool_use", "id": name, "name": "go", "input": {}} for name in ("toolu_1", "toolu_2")]
CALLED = [{"type": "function_call", "call_id": name, "name": "go", "arguments": "{}"} for name in ("call_1", "call_2")]
LATE = ("2", "1")
DIALECTS = {
    openai_chat: {
        "messages": [
            {"role": "assistant", "content": None, "tool_calls": MADE},
            *({"role": "tool", "tool_call_id": f"call_{name}", "content": name} for name in LATE),
        ]
    },
    anthropic_messages: {
        "messages": [
            {"role": "assistant", "content": USED},
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": f"toolu_{name}", "content": name} for name in LATE],
            },
        ]
    },
    openai_responses: {
        "input": [
            *CALLED,
            *({"type": "function_call_output", "call_id": f"call_{name}", "output": name} for name in LATE),
        ]
    },
}
"""Results of two calls in the order in which they ended, in each dialect."""


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.__name__)
def test_each_dialect_reads_results_in_the_order_of_the_calls(dialect):
    _, said = dialect.read(DIALECTS[dialect]).split()
    assert [one.text for one in said if one.role == "tool"] == ["1", "2"]
