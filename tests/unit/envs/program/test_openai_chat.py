"""Test how a reply of the policy becomes the answer that a program reads."""

import pytest

from verl_agent.envs.program.openai_chat import answer_message


def call(arguments):
    return f'<tool_call>\n{{"name": "go", "arguments": {arguments}}}\n</tool_call>'


@pytest.mark.parametrize("arguments", ["[1]", '[["to", "north"]]', "[]", '""', "false", '"north"', "3", "{"])
def test_a_call_whose_arguments_are_no_object_stays_text(arguments):
    """A client would raise on such a call; as text the program can answer it."""
    assert answer_message(call(arguments), has_tools=True) == {"role": "assistant", "content": call(arguments)}


def test_a_call_is_read_with_its_arguments():
    (read,) = answer_message(call('{"to": "north"}'), has_tools=True)["tool_calls"]
    assert read["function"] == {"name": "go", "arguments": '{"to": "north"}'}
