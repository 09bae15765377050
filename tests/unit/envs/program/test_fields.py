"""Test the table of fields: what passes, what is refused with a remedy, and what is named once."""

import inspect
import json
import logging

import pytest

from verl_agent.envs.program.conversation import Counts
from verl_agent.envs.program.fields import FIELDS
from verl_agent.envs.program.gateway import DIALECTS
from verl_agent.envs.program.requests import AS_JSON, NO_CALLS, RequestRefused, to_answer

USER = [{"role": "user", "content": "a"}]
CHAT, MESSAGES, RESPONSES = ({"messages": USER}, {"messages": USER, "max_tokens": 9}, {"input": "a"})
read_chat, read_responses, read_messages = (dialect.read for dialect in DIALECTS.values())
READS = {
    "chat completions": (read_chat, CHAT),
    "messages": (read_messages, MESSAGES),
    "responses": (read_responses, RESPONSES),
}
TOOL = {"name": "f", "input_schema": {}}
HARMLESS = {
    "chat completions": {
        "n": 1,
        "stop": None,
        "functions": [],
        "function_call": "none",
        "logprobs": False,
        "top_logprobs": 0,
        "logit_bias": {},
        "modalities": ["text"],
        "response_format": {"type": "text"},
        "tools": [],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "stream_options": None,
        "metadata": {"a": "b"},
        "store": True,
        "user": "u",
        "service_tier": "auto",
        "seed": 1,
        "temperature": 0.2,
        "reasoning_effort": "high",
        "audio": None,
    },
    "messages": {
        "thinking": {"type": "adaptive"},
        "metadata": {"user_id": "u"},
        "context_management": {"edits": []},
        "output_config": {"effort": "high"},
        "system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}],
        "stop_sequences": [],
        "service_tier": "auto",
        "container": None,
        "mcp_servers": [],
        "temperature": 1,
        "top_k": 5,
        "tools": [TOOL],
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
    },
    "responses": {
        "reasoning": {"summary": "auto"},
        "include": ["reasoning.encrypted_content"],
        "store": False,
        "truncation": "auto",
        "prompt_cache_key": "k",
        "client_metadata": {"a": "b"},
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "background": False,
        "conversation": None,
        "top_logprobs": 0,
        "text": {"format": {"type": "text"}},
        "prompt": None,
    },
}
HARMFUL = {
    "chat completions": {
        "n": 2,
        "logprobs": True,
        "top_logprobs": 3,
        "logit_bias": {"1": 5},
        "functions": [{"name": "f"}],
        "modalities": ["audio"],
        "audio": {"voice": "x"},
        "web_search_options": {"a": 1},
        "stop": 3,
        "max_tokens": 0,
        "response_format": {"type": "grammar"},
    },
    "messages": {
        "container": "c",
        "mcp_servers": [{"url": "x"}],
        "max_tokens": -1,
        "thread": {"type": "create"},
        "compaction": {"type": "enabled"},
    },
    "responses": {"top_logprobs": 2, "conversation": "c", "prompt": {"id": "p"}, "background": True},
}


@pytest.mark.parametrize(("dialect", "name"), [(dialect, name) for dialect in HARMLESS for name in HARMLESS[dialect]])
def test_a_field_that_changes_nothing_passes(dialect, name):
    read, body = READS[dialect]
    assert read({**body, name: HARMLESS[dialect][name]}).said[-1].text == "a"


@pytest.mark.parametrize(("dialect", "name"), [(dialect, name) for dialect in HARMFUL for name in HARMFUL[dialect]])
def test_a_field_that_cannot_be_kept_is_refused_with_its_name_and_the_next_step(dialect, name):
    read, body = READS[dialect]
    named = "max_tokens" if name == "max_tokens" else "format" if name == "response_format" else name
    with pytest.raises(RequestRefused, match=rf"{named}.*(\. |: )(Leave|Use|Send|Give|Ask|Allowed)"):
        read({**body, name: HARMFUL[dialect][name]})


def test_an_unknown_field_is_named_once_and_ignored(caplog):
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            read_chat({**CHAT, "max_tokenz": 3})
    (warning,) = caplog.records
    assert "'max_tokenz'" in warning.getMessage() and "Did you mean 'max_tokens'?" in warning.getMessage()


def test_tools_of_the_vendors_servers_are_left_out_with_a_warning(caplog):
    with caplog.at_level(logging.WARNING):
        request = read_responses({**RESPONSES, "tools": [{"type": "web_search"}, {"type": "function", "name": "f"}]})
    assert list(request.tools) == ["f"] and "'web_search'" in caplog.text


@pytest.mark.parametrize(
    ("dialect", "kind"),
    [("messages", "bash_20250124"), ("messages", "text_editor_20250728"), ("responses", "local_shell")],
)
def test_a_vendors_tool_that_the_program_runs_is_refused(dialect, kind):
    read, body = READS[dialect]
    with pytest.raises(RequestRefused, match=rf"the tool '{kind}' has parameters .* Give the policy a function"):
        read({**body, "tools": [{"type": kind, "name": "run"}]})


@pytest.mark.parametrize("dialect", ["chat completions", "responses"])
def test_the_policy_reads_the_grammar_of_a_custom_tool(dialect):
    read, body = READS[dialect]
    grammar = {"syntax": "lark", "definition": "start: /a+/"}
    form = {"type": "grammar", "grammar": grammar} if dialect == "chat completions" else {"type": "grammar", **grammar}
    own = {"name": "patch", "description": "Patches.", "format": form}
    tool = {"type": "custom", "custom": own} if dialect == "chat completions" else {"type": "custom", **own}
    function = read({**body, "tools": [tool]}).tools["patch"]["function"]
    assert function["description"] == "Patches.\n\nThe input has this grammar (lark):\nstart: /a+/"


@pytest.mark.parametrize(("thinking", "shown"), [(None, False), ("disabled", False), ("enabled", True)])
def test_a_program_gets_thoughts_where_it_asks_for_them(thinking, shown):
    request = read_messages({**MESSAGES, "thinking": thinking and {"type": thinking}})
    answer = DIALECTS["/v1/messages"].write(to_answer(request, "<think>hm</think>yes", Counts()))
    assert [block["type"] for block in answer["content"]] == ["thinking"] * shown + ["text"]


def test_the_policy_reads_who_spoke_and_that_a_tool_failed():
    said = [{"role": "user", "name": name, "content": "Bad."} for name in ("Critic", "user")]
    assert [one.text for one in read_chat({"messages": said}).said] == ["Critic: Bad.", "Bad."]
    for content, text in (("no file", "Error: no file"), ("Error: no", "Error: no"), ([], "Error")):
        result = {"type": "tool_result", "tool_use_id": "a", "is_error": True, "content": content}
        assert read_messages({"messages": [{"role": "user", "content": [result]}]}).said[0].text == text


def test_every_field_of_the_vendors_clients_is_in_the_table():
    openai = pytest.importorskip("openai", reason="openai is not installed: pip install openai")
    anthropic = pytest.importorskip("anthropic", reason="anthropic is not installed: pip install anthropic")
    client = openai.OpenAI(api_key="k")
    calls = {
        "chat completions": client.chat.completions.create,
        "responses": client.responses.create,
        "messages": anthropic.Anthropic(api_key="k").beta.messages.create,
    }
    own = {"self", "extra_headers", "extra_query", "extra_body", "timeout"}
    for dialect, call in calls.items():
        assert set(inspect.signature(call).parameters) - own - set(FIELDS[dialect]) == set()


def test_a_developers_message_is_one_of_the_system_and_parts_are_joined():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    request = read_chat({"messages": [{"role": "developer", "content": "s"}, {"role": "user", "content": parts}]})
    system, (said,) = request.split()
    assert (system, said.text) == ("s", "ab")
    later = read_messages({**MESSAGES, "messages": [*USER, {"role": "system", "content": "remember"}]})
    assert [one.role for one in later.said] == ["user", "system"]


@pytest.mark.parametrize(
    ("dialect", "part"),
    [
        ("chat completions", {"type": "image_url", "image_url": {"url": "data:"}}),
        ("messages", {"type": "image", "source": {}}),
        ("responses", {"type": "input_image", "image_url": "data:"}),
    ],
)
def test_images_are_refused_by_name(dialect, part):
    read, body = READS[dialect]
    name = "input" if dialect == "responses" else "messages"
    with pytest.raises(RequestRefused, match=rf"'{part['type']}'.*Send a description"):
        read({**body, name: [{"role": "user", "content": [part]}]})


@pytest.mark.parametrize(
    ("dialect", "fields", "limits"),
    [
        ("chat completions", {"max_tokens": 7, "stop": "x"}, {"max_tokens": 7, "stop": ["x"]}),
        ("chat completions", {"max_completion_tokens": 7, "max_tokens": 9}, {"max_tokens": 7}),
        ("messages", {"max_tokens": 7, "stop_sequences": ["x", "y"]}, {"max_tokens": 7, "stop": ["x", "y"]}),
        ("responses", {"max_output_tokens": 7}, {"max_tokens": 7}),
    ],
)
def test_limits_on_the_reply_are_passed_on(dialect, fields, limits):
    read, body = READS[dialect]
    assert read({**body, **fields}).limits == limits


def with_schema(dialect, schema):
    """Return the fields with which a request asks for a schema."""
    form = {"type": "json_schema", "schema": schema}
    return {
        "chat completions": {"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}},
        "messages": {"output_config": {"format": form}},
        "responses": {"text": {"format": form}},
    }[dialect]


LOOP = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}
NO_SCHEMAS = [{"type": "nonsense"}, {"$ref": "#/nope"}, {"$ref": "http://a/b"}, {"pattern": "("}, [1], "x", 3, LOOP]


@pytest.mark.parametrize("dialect", READS)
@pytest.mark.parametrize("schema", NO_SCHEMAS, ids=str)
def test_a_schema_of_the_reply_that_is_none_is_refused_on_arrival(dialect, schema):
    read, body = READS[dialect]
    with pytest.raises(RequestRefused, match=r"the schema.* of the reply"):
        read({**body, **with_schema(dialect, schema)})


@pytest.mark.parametrize("dialect", READS)
@pytest.mark.parametrize("schema", [{"type": "array"}, {"anyOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {}}}, {}])
def test_a_schema_of_the_reply_is_kept(dialect, schema):
    read, body = READS[dialect]
    assert read({**body, **with_schema(dialect, schema)}).schema == schema


TOOLS = {
    "chat completions": {"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "none"},
    "messages": {"tools": [TOOL], "tool_choice": {"type": "none"}},
    "responses": {"tools": [{"type": "function", "name": "f"}], "tool_choice": "none"},
}


@pytest.mark.parametrize("dialect", READS)
def test_a_request_that_forbids_calls_lists_its_functions_and_says_so(dialect):
    read, body = READS[dialect]
    request = read({**body, **TOOLS[dialect], **with_schema(dialect, {})})
    free = read({**body, "tools": TOOLS[dialect]["tools"]})
    assert (request.split(), request.choice) == (free.split(), "none") and '"name": "f"' in free.split()[0]
    assert request.directive == NO_CALLS + AS_JSON
    assert read({**body, "tool_choice": TOOLS[dialect]["tool_choice"]}).directive == ""


@pytest.mark.parametrize("dialect", READS)
def test_two_tools_of_one_name_are_refused(dialect):
    read, body = READS[dialect]
    with pytest.raises(RequestRefused, match=r"two tools have the name 'f'\. Give"):
        read({**body, "tools": TOOLS[dialect]["tools"] * 2})


def test_a_custom_tool_keeps_its_form_in_a_namespace():
    own = [{"type": "custom", "name": "patch"}, {"type": "function", "name": "run"}]
    request = read_responses({**RESPONSES, "tools": [{"type": "namespace", "name": "shell", "tools": own}]})
    calls = [{"name": "patch", "arguments": {"input": "a b"}}, {"name": "run", "arguments": {}}]
    reply = "\n".join(f"<tool_call>\n{json.dumps(one)}\n</tool_call>" for one in calls)
    custom, function = DIALECTS["/v1/responses"].write(to_answer(request, reply, Counts()))["output"]
    assert (custom["type"], custom["namespace"], custom["input"]) == ("custom_tool_call", "shell", "a b")
    assert (function["type"], function["namespace"]) == ("function_call", "shell")
