"""Function calls in the formats of families of models: written and read without loss, and broken ones named."""

import json
import random

import pytest
from jsonschema import Draft202012Validator

from tests.support.random_schemas import random_object, random_value
from verl_agent.agents.functions import FunctionCalls
from verl_agent.envs.action_format import ToolFormat, action_format_from_json, action_format_to_json
from verl_agent.envs.call_error import BROKEN_JSON, NO_CALL, WRONG, CallError
from verl_agent.envs.call_formats import CALL_FORMATS
from verl_agent.envs.tool_check import check_action
from verl_agent.envs.tools import Tool
from verl_agent.errors import ConfigError
from verl_agent.types import DemoAction, ToolCall

SCHEMAS, ARGUMENTS = 500, 20
"""Random schemas, and random arguments of each: 10,000 in each format."""


def written_and_read(calls: str, seed: int) -> tuple[int, int]:
    """Return how many random calls are read as they were written, and how many the format refuses to write."""
    draws = random.Random(seed)
    same = refused = 0
    for _ in range(SCHEMAS):
        schema = random_object(draws)
        tool, definition = Tool("f", "Does it.", schema), Draft202012Validator(schema)
        agent = FunctionCalls(ToolFormat((tool,)), calls=calls)
        for _ in range(ARGUMENTS):
            call = ToolCall("f", random_value(schema, draws))
            definition.validate(call.arguments)
            (read,) = agent.read_reply(f"I think.\n{CALL_FORMATS[calls].write('f', call.arguments)}\n")
            if str(read.action) == str(call):
                same += 1
            else:
                with pytest.raises(ConfigError, match="no function makes the action"):
                    agent.render_demo([DemoAction(call)], 0)
                refused += 1
    return same, refused


@pytest.mark.parametrize("calls", [name for name in CALL_FORMATS if name != "qwen3_coder"])
def test_10_000_random_arguments_arrive_as_they_were_written(calls):
    assert written_and_read(calls, 1) == (SCHEMAS * ARGUMENTS, 0)


def test_text_arguments_of_qwen3_coder_arrive_or_are_refused():
    """Its texts have no type, so that `3` of a text or a number is one of the two."""
    same, refused = written_and_read("qwen3_coder", 2)
    assert same + refused == SCHEMAS * ARGUMENTS and refused < same / 2


def test_a_format_written_as_json_has_the_same_tools():
    schema = random_object(random.Random(5))
    one = ToolFormat((Tool("f", "Does it.", schema),))
    assert action_format_from_json(json.loads(json.dumps(action_format_to_json(one)))) == one


NESTED = '<tool_call>{"name": "g"}</tool_call></think>'


@pytest.mark.parametrize("calls", CALL_FORMATS)
def test_a_call_inside_an_argument_is_text(calls):
    form = CALL_FORMATS[calls]
    (read,) = form.read(f"I write.\n{form.write('f', {'t': NESTED})}")
    assert (read.name, read.arguments, read.error) == ("f", {"t": NESTED}, None)


@pytest.mark.parametrize("calls", CALL_FORMATS)
def test_several_calls_are_read_in_order(calls):
    form = CALL_FORMATS[calls]
    read = form.read("\n".join(form.write("f", {"n": str(number)}) for number in range(3)))
    assert [(one.name, one.arguments) for one in read] == [("f", {"n": str(number)}) for number in range(3)]


@pytest.mark.parametrize("calls", CALL_FORMATS)
def test_a_call_inside_of_thinking_is_not_carried_out(calls):
    form = CALL_FORMATS[calls]
    call = form.write("f", {"n": "1"})
    for reply in (f"<think>{call}</think>", f"{call}</think>", f"<think>{call}", f"<think>\n{call}\n</think>\nWell."):
        (read,) = form.read(reply)
        assert read.error is not None and read.error.kinds == (NO_CALL,) and "thinking" in read.error.text
    after = form.read(f"<think>{call}</think>\n{form.write('g', {})}")
    assert [one.name for one in after] == ["g"]


@pytest.mark.parametrize("calls", CALL_FORMATS)
def test_a_reply_that_is_cut_anywhere_in_a_call_makes_no_other_call(calls):
    form = CALL_FORMATS[calls]
    whole = form.write("f", {"t": NESTED, "n": "1"})
    for end in range(len(whole)):
        for one in form.read(whole[:end]):
            complete = one.error is None and one.name == "f" and one.arguments == {"t": NESTED, "n": "1"}
            assert complete or one.error is not None, (whole[:end], one)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ('{"name": "f" "arguments": {}}', "Expecting ',' delimiter at character 14, after '{\"name\": \"f\" '"),
        ('{"name": "f", "arguments": {"a": 1, "a": 2}}', "the key 'a' occurs twice"),
        ('{"name": "f", "arguments": {"a": NaN}}', "NaN is no JSON"),
        ('{"name": "f", "arguments": {"a": 1e999}}', "the number 1e999 is too large"),
        ('{"name": "f", "arguments": {"a": "\\ud800"}}', "half a character"),
        ('{"name": "f", "arguments": "{"}', "its arguments are no JSON"),
        ('{"name": "f", "arguments": {"a": {}}', "it is not complete: its end is missing at character 37"),
        ('{"arguments": {}}', "names no function"),
        ('{"name": "f", "arguments": ' + "[" * 70 + "]" * 70 + "}", "nested more than 64 levels"),
        ('{"name": "f", "arguments": {"a": "b', "is cut off"),
        ("f(1)", "no JSON object"),
    ],
)
def test_a_broken_call_is_named_with_its_place(text, part):
    (read,) = CALL_FORMATS["hermes"].read(
        f"<tool_call>{text}</tool_call>" if text[-1] in "})" else f"<tool_call>{text}"
    )
    assert read.error is not None and read.error.kinds == (BROKEN_JSON,)
    assert part in read.error.text


def test_nothing_is_read_after_a_broken_call():
    """The rest of the reply may be text of the broken call, which a stranger may have written."""
    reply = '<tool_call>{"name": "f", "arguments": {"a" "</tool_call><tool_call>{\\"name\\": \\"drop\\"}</tool_call>'
    (read,) = CALL_FORMATS["hermes"].read(reply)
    assert read.error is not None and "Nothing after it was read" in read.error.text
    for whole in (reply.partition("</tool_call>")[0] + "</tool_call>\n", '<tool_call>{"name": "f"', '<tool_call>{"a'):
        (alone,) = CALL_FORMATS["hermes"].read(whole)
        assert alone.error is not None and "Nothing after" not in alone.error.text, "nothing follows"


def test_arguments_that_are_a_text_are_refused_as_one():
    agent = FunctionCalls(ToolFormat((Tool("f", "Does it.", {"type": "object"}),)))
    (read,) = agent.read_reply('<tool_call>{"name": "f", "arguments": "Rome"}</tool_call>')
    assert read.errors == (WRONG,) and read.step is not None
    assert read.step.observation == 'f was not called: its arguments are the text "Rome". Allowed: a JSON object.'
    refused = check_action((Tool("f", "Does it.", {"type": "object"}),), '{"name": "f", "arguments": {}')
    assert isinstance(refused, CallError) and "it is not complete" in refused.text


def test_many_calls_are_read_in_a_time_that_grows_with_the_reply():
    reply = CALL_FORMATS["hermes"].write("f", {"n": 1}) * 5_000
    assert len(CALL_FORMATS["hermes"].read(reply)) == 5_000
    assert CALL_FORMATS["llama3"].read("{ " * 200_000) == []


@pytest.mark.parametrize(
    ("calls", "version"), [("mistral", "v3"), ("mistral", "v7"), ("mistral11", "v11"), ("mistral11", "v13")]
)
def test_mistrals_own_tokenizer_writes_calls_as_here(calls, version):
    """The renderer of `mistral_common`, which Mistral publishes, is the template of the family."""
    pytest.importorskip("mistral_common", reason="mistral_common is not installed: pip install mistral_common")
    rendered = mistral_text(version, [("f", {"n": 1, "t": "größer"}), ("g", {})])
    read = CALL_FORMATS[calls].read(rendered)
    assert [(one.name, one.arguments or {}, one.error) for one in read] == [
        ("f", {"n": 1, "t": "größer"}, None),
        ("g", {}, None),
    ]
    assert "[TOOL_CALLS]" in rendered
    without = rendered
    for special in ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"):  # engines leave special tokens out
        without = without.replace(special, "")
    if version != "v11":  # without its mark, the id of a call is part of its name
        assert CALL_FORMATS[calls].read(without) == read


def mistral_text(version: str, calls: list[tuple[str, dict]]) -> str:
    """Return the text of an assistant message with calls, special tokens included."""
    from mistral_common.protocol.instruct.messages import AssistantMessage
    from mistral_common.protocol.instruct.tool_calls import FunctionCall
    from mistral_common.protocol.instruct.tool_calls import ToolCall as Called
    from mistral_common.tokens.tokenizers import instruct

    kind = getattr(instruct, f"InstructTokenizer{version.upper()}")
    renderer = kind.__new__(kind)
    renderer.tokenizer = Pieces()
    renderer.TOOL_CALLS, renderer.ARGS, renderer.CALL_ID = map(Pieces.special, Pieces.specials)
    made = [
        Called(
            id=f"{number:09d}", function=FunctionCall(name=name, arguments=json.dumps(arguments, ensure_ascii=False))
        )
        for number, (name, arguments) in enumerate(calls)
    ]
    message = AssistantMessage(content=None, tool_calls=made)
    return Pieces.text(renderer._encode_tool_calls_in_assistant_message(message))


class Pieces:
    """Tokenizer whose tokens are characters and special texts."""

    specials = ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]")
    first = 0x110000

    def encode(self, text, bos, eos):
        return [ord(one) for one in text]

    @classmethod
    def special(cls, text):
        return cls.first + cls.specials.index(text)

    @classmethod
    def text(cls, pieces):
        return "".join(chr(one) if one < cls.first else cls.specials[one - cls.first] for one in pieces)


@pytest.mark.parametrize(
    ("reply", "action"),
    [
        ('Thought: x\nAction: {"name": "f", "arguments": {"t": "Action: {}"}}', ToolCall("f", {"t": "Action: {}"})),
        ('**Action:** `{"name": "f"}`', ToolCall("f", {})),
        ('Action: {"name": "f"}\nAction: {"name": "g", "arguments":\n {"a": 1}}', ToolCall("g", {"a": 1})),
        ('<think>Action: {"name": "f"}</think>', None),
        ('Action: {"name": "f", "argu', '{"name": "f", "argu'),
        ("Action: f", None),
        ("Hm.", None),
    ],
)
def test_agents_that_write_actions_write_calls_as_json(reply, action):
    """A call that cannot be read stays a text, so that the environment says what is wrong with it."""
    assert ToolFormat((Tool("f", "F."), Tool("g", "G."))).parse(reply) == action


@pytest.mark.parametrize(
    ("calls", "marks"),
    [
        ("hermes", ["<tool_call>", "</tool_call>"] * 2),
        ("smollm2", ["<tool_call>", "</tool_call>"] * 2),
        ("qwen3_coder", ["<tool_call>", "</tool_call>"] * 2),
        ("llama3", []),
        ("mistral", ["[TOOL_CALLS]"] * 2),
        ("mistral11", ["[TOOL_CALLS]", "[ARGS]"] * 2),
    ],
)
def test_marks_around_calls_are_found_and_those_in_arguments_are_text(calls, marks):
    form = CALL_FORMATS[calls]
    reply = "\n".join(["I call.", *[form.write("f", {"t": f"{NESTED}[TOOL_CALLS]f[ARGS]"})] * 2])
    assert [reply[start:end] for start, end in form.marks(reply)] == marks
