"""Prompts of agents, the parser of replies, and context windows."""

import asyncio
import json
import re
from itertools import pairwise

import pytest

from env_adapters.textcraft.adapter import TextCraft, goal_item
from tests.support.fakes import ITEM, ScriptedPolicy, talk_class
from verl_agent.agents.base import Agent
from verl_agent.agents.context import OMITTED, KeepAll, LastObservations, Summary, make_context, summary_in
from verl_agent.agents.functions import CALL_FORMATS, FunctionCalls, example_arguments
from verl_agent.agents.plain import Act, Raw, ReAct, Think
from verl_agent.agents.plan import REFLECT, PlanReflect
from verl_agent.agents.registry import make_agent
from verl_agent.agents.settings import AgentSettings
from verl_agent.envs.action_format import (
    FenceFormat,
    LineFormat,
    TagFormat,
    action_format_from_json,
    action_format_to_json,
)
from verl_agent.envs.parsing import first_tag, last_action, unwrap
from verl_agent.envs.tools import Tool, arguments
from verl_agent.errors import ConfigError, EnvError
from verl_agent.rollout.episode import EpisodeLimits, play_episode
from verl_agent.rollout.oracle import demonstrate
from verl_agent.types import DemoAction, Message, StepResult

SEARCH = TagFormat(tags=(("search", "words"), ("answer", "answer")))
FORMATS = [TextCraft.action_format, LineFormat(placeholder="<number>"), SEARCH, FenceFormat()]
AGENTS: list[type[Agent]] = [Act, ReAct, Think, PlanReflect]


# The parser


@pytest.mark.parametrize(
    ("reply", "action"),
    [
        ("Action: get 4 birch log", "get 4 birch log"),
        ("Thought: wood.\nAction: get 4 birch log.", "get 4 birch log."),
        ("Action: get 1 oak log? No.\nAction:   GET  4  Birch Log  ", "GET  4  Birch Log"),
        ("Action: get 4 birch log\nI chose Action: get because it is wood.", "get 4 birch log"),
        ("I say Action: get 1 oak log, or Action: get 4 birch log", "get 4 birch log"),
        ("> Action: get 4 birch log", "get 4 birch log"),
        ("Action:\n```\nget 4 birch log\n```", "get 4 birch log"),
        ("Action: ```get 4 birch log```", "get 4 birch log"),
        ("Action:\n```\necho ```\n```", "echo ```"),  # the last line is the closing fence
        ("```text\nAction: get 4 birch log\n```", "get 4 birch log"),
        ("**Action:** `get 4 birch log`", "get 4 birch log"),
        ("**Action**: get 4 birch log", "get 4 birch log"),
        ("__Action__ : get 4 birch log", "get 4 birch log"),
        ("*Action: get 4 birch log*", "get 4 birch log"),
        ("**Action: get 4 birch log**", "get 4 birch log"),
        ("Action: **get 4 birch log**", "get 4 birch log"),
        ("Action: ``get `4` birch log``", "get `4` birch log"),
        ("**Next Action:** get 1 oak log", "get 1 oak log"),
        ("- **My Action:** `get 1 oak log`", "get 1 oak log"),
        ("**Thought:** wood. **Next Action:** get 1 oak log", "get 1 oak log"),
        ("**_Action:_** get 1 oak log", "get 1 oak log"),
        ("**Thought: wood. Action: get 1 oak log**", "get 1 oak log"),
        ("*Thought: wood. Action: get 1 oak log*", "get 1 oak log"),
        ("Action: **`get 1 oak log`**", "get 1 oak log"),
        ("**Action: `get 1 oak log`**", "get 1 oak log"),
        ("Action:\n```\nget 1 oak log```", "get 1 oak log"),
        ("```text\nAction: get 1 oak log```", "get 1 oak log"),
        ("Action:\r\n```sh\r\nget 1 oak log```\r\n", "get 1 oak log"),
        ("Action:\r\n```sh\r\nls -la\r\n```", "ls -la"),
        ("The reaction: none", None),
        ("action : get 4 birch log\nObservation: Got 4 birch log", "get 4 birch log"),
        ("<think>Action: no</think>\nAction: yes", "yes"),
        ("Action: yes\n<think>Action: no</think>", "yes"),
        ("<think>Action: only thought of</think>", None),
        ("I could say Action: no </think> Action: yes", "yes"),
        ("The prompt opened the thought. Action: yes</think> ", "yes"),
        ("<think>never closed\nAction: yes", "yes"),
        ("get 4 birch log", None),
        ("Action:", None),
        ("Action:\n\n", None),
        ("", None),
    ],
)
def test_line_format_parses_the_last_action_whatever_marks_surround_it(reply, action):
    assert last_action(reply) == action


@pytest.mark.parametrize(
    ("thought", "action"),
    [
        ("", "SELECT * FROM t"),
        ("", "a ** b"),
        ("", "ls *.py"),
        ("", "ls src/**"),
        ("", "echo ```"),
        ("", "`*a*`"),
        ("Thought: pass *args. ", "SELECT a*"),
        ("Thought: match **/*.py. ", "ls src/**"),
        ("Thought: 2**3 is 8. ", "ls src/**"),
        ("Thought: snake_case and _private. ", "print _"),
        ("* Thought: a list. ", "ls *"),
        ("**Thought:** list all. ", "ls src/**"),
        ("**Thought: list all.\n", "ls src/**"),
        ("```sh\nls\n```\n", "echo ```"),
    ],
)
def test_line_format_keeps_marks_that_belong_to_the_action(thought, action):
    assert last_action(f"{thought}{LineFormat().format(action)}") == action
    if action != "`*a*`":
        assert last_action(f"{thought}Action: {action}") == action


@pytest.mark.parametrize(
    ("reply", "action"),
    [
        ("In summary, the next action I will perform is ```click [12]```", "click [12]"),
        ("```python\nx\n``` then ```type [3] [a b] [1]```", "type [3] [a b] [1]"),
        ("```\nclick [1]\n```", "click [1]"),
        ("<think>```stop [no]```</think> ```stop [yes]```", "stop [yes]"),
        ("``` ```", None),
        ("click [12]", None),
        ("```python\nfor x in y:\n    print(x)\n```", "for x in y:\n    print(x)"),
        ("```c++\n\n    return 1;\n```", "    return 1;"),
        ("```click [1]\n``` or\n```\nls\npwd\n```", "ls\npwd"),
        ("````\n```\nx\n```\n````", "```\nx\n```"),
        ("```DELETE\nFROM people```", "DELETE\nFROM people"),  # no name of a language
        ("```begin\n```", "begin"),
        ("```sql\nDELETE FROM people\n```", "DELETE FROM people"),
        ("```SQL\nDELETE FROM people```", "DELETE FROM people"),
        ("```elixir\nIO.puts(1)\n```", "IO.puts(1)"),
    ],
)
def test_fence_format_parses_the_last_fence(reply, action):
    assert FenceFormat().parse(reply) == action


TEXTS = [
    "select * from books where author='Brown'",
    'grep "a b" *.py',
    '"quoted"',
    "'a' == 'b'",
    "`ls`",
    "**/*.py",
    'echo "Action: done"',
    "a  b\tc",
    "end`",
    "```python",
    "x\ud800y",
    "a\u2028b",
]
LINES = ["for x in y:\n    print(x)", "    if x:\n        y = 'z'", "a\n\n\nb", "ls\nfoo", "```sh\nls\n```", "x\r\ny"]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("action_format", [LineFormat(), TagFormat(tags=(("sql", "query"),)), FenceFormat()], ids=repr)
def test_formats_return_actions_of_one_line_as_written(action_format, text):
    action = action_format.action_with(text)
    assert action_format.parse(f"I try this.\n{action_format.format(action)}") == action


@pytest.mark.parametrize("text", LINES)
@pytest.mark.parametrize("action_format", [TagFormat(tags=(("sql", "query"),)), FenceFormat()], ids=repr)
def test_tags_and_fences_return_actions_of_several_lines_as_written(action_format, text):
    action = action_format.action_with(text)
    assert action_format.parse(action_format.format(action)) == action


def test_text_of_a_tag_keeps_its_indentation_when_it_is_parsed_twice():
    action = SEARCH.parse("<search>\n    if x:\n        y\n</search>")
    assert action == "<search>\n    if x:\n        y</search>"
    assert SEARCH.parse(action) == action
    assert SEARCH.split(action) == ("search", "    if x:\n        y")


@pytest.mark.parametrize(
    ("text", "unwrapped"),
    [
        ("`a`", "a"),
        ("** a **", "a"),
        ("`a", "`a"),
        ("a`", "a`"),
        ("`a` `b`", "`a` `b`"),
        ("'a'", "'a'"),
        ("``", "``"),
        ("`a``", "`a``"),
        ("**`a`**", "a"),
        ("***a** b*", "***a** b*"),
        ("`**a**`", "**a**"),
        ("`` `a` ``", "`a`"),
    ],
)
def test_only_balanced_marks_around_the_whole_text_are_unwrapped(text, unwrapped):
    assert unwrap(text) == unwrapped


@pytest.mark.parametrize(
    "junk",
    [
        "`" * 200_000,
        "<think>" * 50_000,
        "Action: " * 50_000,
        "```" + " " * 500_000,
        "<" * 300_000,
        "**a _b " * 100_000 + "Action:",
    ],
)
def test_parsing_a_megabyte_takes_linear_time(junk):
    """A pattern with quadratic time would reach the timeout of the test."""
    for action_format in FORMATS:
        assert len(action_format.parse(junk) or "") <= len(junk)
    assert FunctionCalls(LineFormat()).parse_reply(junk + "<tool_call>" * 10_000) is None


# Action formats


@pytest.mark.parametrize("action_format", FORMATS, ids=lambda action_format: action_format.kind)
def test_formats_parse_what_they_format_and_survive_json(action_format):
    action = "<search>who</search>" if action_format.kind == "tag" else "get 1 oak log"
    assert action_format.parse(action_format.format(action)) == action
    assert action_format_from_json(json.loads(json.dumps(action_format_to_json(action_format)))) == action_format


@pytest.mark.parametrize(
    "value", [None, {}, {"kind": "shout"}, {"kind": "line", "loud": True}, {"kind": "tag", "tags": 3}]
)
def test_unknown_action_format_raises_env_error(value):
    with pytest.raises(EnvError, match="is not known to this version"):
        action_format_from_json(value)


def test_an_empty_tag_has_no_text():
    assert SEARCH.parse("<search> </search>") == "<search></search>"
    assert SEARCH.split("<search></search>") is None
    assert SEARCH.split("<answer>a b</answer>") == ("answer", "a b")
    assert first_tag("<SEARCH >who", ("search",)) == ("search", "who")


# Agents


@pytest.mark.parametrize("action_format", FORMATS, ids=lambda action_format: action_format.kind)
@pytest.mark.parametrize("agent", AGENTS)
def test_every_agent_parses_its_own_demonstrations(agent, action_format):
    action = "<search>who</search>" if action_format.kind == "tag" else "get 1 oak log"
    moves = [DemoAction(action, "I need wood."), DemoAction(action)]
    replies = [agent(action_format).render_demo(moves, turn) for turn in range(2)]
    parsed = [agent(action_format).parse_reply(reply) for reply in replies]
    assert parsed == [action] * 2
    assert ("I need wood." in replies[0]) == (agent is not Act)


def test_demonstrations_of_every_agent_solve_a_goal():
    item = goal_item("minecraft:birch_wood")
    for kind in (*AGENTS, FunctionCalls):
        agent, env = kind(TextCraft.action_format), TextCraft()
        moves = env.demonstration(item)
        replies = [agent.render_demo(moves, turn) for turn in range(len(moves))]
        episode = asyncio.run(play_episode(item, env, agent, ScriptedPolicy(replies), EpisodeLimits(len(replies))))
        assert (episode.reward, episode.turns[0].action) == (1.0, "get 4 birch log")


def test_instructions_follow_the_rules_and_can_be_switched_off():
    prompt: list[Message] = [{"role": "system", "content": "Rules."}, {"role": "user", "content": "Go."}]
    prompt_of_act = Act(LineFormat(placeholder="<number>")).build_prompt(prompt)
    assert prompt_of_act[0]["content"].startswith("Rules.\n\n") and prompt_of_act[0]["content"].endswith(
        "Action: <number>"
    )
    assert prompt_of_act[1] == prompt[1]
    assert Act(LineFormat(), instructions=False).build_prompt(prompt) == prompt
    alone = ReAct(LineFormat()).build_prompt([{"role": "user", "content": "Question?"}])
    assert alone[0]["content"].endswith("Action: <action>\n\nQuestion?")
    assert "Summary:" in Act(LineFormat(), Summary(), instructions=False).build_prompt(prompt)[0]["content"]


def test_instructions_of_act_ask_for_one_line_only_if_the_format_holds_one():
    assert Act(LineFormat()).instruction().endswith(" Answer with one line: Action: <action>")
    assert Act(FenceFormat()).instruction().endswith(" Answer with the action alone: ```<action>```")


def test_a_reply_without_an_action_costs_a_turn_and_does_not_reach_the_environment():
    env = talk_class()(turns=1)
    agent = ReAct(LineFormat())
    episode = asyncio.run(play_episode(ITEM, env, agent, ScriptedPolicy(["hello", "Action: go"]), EpisodeLimits(5)))
    assert [turn.action for turn in episode.turns] == [None, "go"]
    assert (env.heard, episode.info_total("invalid_action"), episode.reward) == (1, 1.0, 1.0)
    assert episode.messages[3]["content"] == "No action found. Answer with: Action: <action>"


def test_raw_agent_adds_nothing_and_passes_whole_replies():
    agent = Raw(LineFormat())
    assert agent.build_prompt([{"role": "user", "content": "Go."}]) == [{"role": "user", "content": "Go."}]
    assert [agent.parse_reply(reply) for reply in ("", " x\n")] == ["", " x\n"]
    assert agent.render_demo([DemoAction("go", "why")], 0) == "go"


def test_plan_agent_asks_for_a_reflection_without_progress_and_at_intervals():
    agent = PlanReflect(LineFormat(), reflect_every=4)
    moves = [DemoAction("a"), DemoAction("b", "why")]
    assert [agent.render_demo(moves, turn) for turn in range(2)] == ["Plan: a; b\nAction: a", "Thought: why\nAction: b"]
    steps = [
        (StepResult("one"), "a", False),
        (StepResult("one"), "a", True),  # nothing changed
        (StepResult("one"), "b", False),  # something else was tried
        (StepResult("three"), "c", True),  # every fourth turn
        (StepResult("two", info={"invalid_action": 1.0}), None, True),
        (StepResult("four"), "d", False),
        (StepResult("four", terminated=True), "d", False),
    ]
    for turn, (step, action, reflects) in enumerate(steps, start=1):
        assert (REFLECT in agent.observe(step, action, turn)["content"]) == reflects, turn


def test_demonstrations_reflect_when_they_are_asked_to():
    agent, item = PlanReflect(TextCraft.action_format, reflect_every=1), goal_item("minecraft:birch_wood")
    replies = [m["content"] for m in demonstrate(item, TextCraft(), agent).messages if m["role"] == "assistant"]
    assert replies[0].startswith("Plan: get 4 birch log; craft")
    assert replies[1].startswith("Reflection: ") and "\nPlan: craft" in replies[1]


@pytest.mark.parametrize(
    ("reply", "action"),
    [
        ('<tool_call>\n{"name": "get", "arguments": {"number": 1, "item": "oak log"}}\n</tool_call>', "get 1 oak log"),
        ('I need wood. <tool_call>{"name":"GET","arguments":{"item":"oak log","number":"1"}}', "get 1 oak log"),
        (
            '<tool_call>{"name": "get", "arguments": "{\\"number\\": 1, \\"item\\": \\"oak log\\"}"}</tool_call>',
            "get 1 oak log",
        ),
        ('<tool_call>{"name": "inventory", "arguments": {}}</tool_call>', "inventory"),
        ('<tool_call>{"name": "inventory", "arguments": ""}</tool_call>', "inventory"),
        ('<tool_call>\n```json\n{"name": "inventory", "arguments": {}}\n```\n</tool_call>', "inventory"),
        ('I use <tool_call> now: <tool_call>{"name": "inventory", "arguments": {}}</tool_call>', "inventory"),
        # After a broken call nothing is read: it may be part of the call's own text.
        ("<tool_call>{</tool_call>" + '<tool_call>{"name": "inventory", "arguments": null}</tool_call>', None),
        ('<tool_call>{"name": "get", "arguments": {"number": 2.0, "item": "log"}}</tool_call>', "get 2 log"),
        ('<tool_call>{"name": "get", "arguments": {"number": 2.5, "item": "log"}}</tool_call>', None),
        ('<tool_call>{"name": "get", "arguments": {"number": true, "item": "log"}}</tool_call>', None),
        ('<tool_call>{"name": "get", "arguments": {"number": 1, "item": ""}}</tool_call>', "get 1 "),
        (
            '<tool_call>{"name": "get", "arguments": {"number": ' + "9" * 24 + ', "item": "log"}}</tool_call>',
            f"get {'9' * 24} log",
        ),
        ('<tool_call>{"name": "get", "arguments": {"number": Infinity, "item": "log"}}</tool_call>', None),
        ('<tool_call>{"name": "get", "arguments": {"number": "one", "item": "oak log"}}</tool_call>', None),
        ('<tool_call>{"name": "get", "arguments": {"number": 1}}</tool_call>', None),
        ('<tool_call>{"name": "fly", "arguments": {"name": "inventory", "arguments": {}}</tool_call>', None),
        ('<tool_call>{"name": "get", "arguments": {"number": 1, "item": {"name": "inventory"}', None),
        ('<tool_call>{"name": "fly", "arguments": {}}</tool_call>', None),
        ('<tool_call>["get"]</tool_call>', None),
        ('<tool_call>{"name": "get", "arguments": {"number": 1, "item": "\\ud800"}}</tool_call>', None),
        ("<tool_call>{</tool_call>", None),
        ("<tool_call>" + "[" * 100_000, None),
        ('<tool_call>{"name": "get", "arguments": {"number": ' + "9" * 5_000 + ', "item": "x"}}</tool_call>', None),
        ("get 1 oak log", None),
    ],
)
def test_function_calls_become_actions_or_none(reply, action):
    assert FunctionCalls(TextCraft.action_format).parse_reply(reply) == action


@pytest.mark.parametrize(
    ("calls", "reply", "action"),
    [
        ("llama3", '{"name": "get", "parameters": {"number": "1", "item": "oak log"}}', "get 1 oak log"),
        ("llama3", '<|python_tag|>{"name": "inventory", "parameters": {}}', "inventory"),
        ("llama3", 'I use {this}: {"type": "function", "name": "inventory", "parameters": {}}', "inventory"),
        ("llama3", '{"name": "fly", "parameters": {}}; {"name": "inventory", "parameters": {}}', "inventory"),
        ("llama3", '{"name": "fly", "parameters": {"name": "inventory"}}', None),
        ("llama3", '{"name": "get", "parameters": {"number": 1, "item": {"name": "inventory"}', None),
        ("llama3", "{ " * 99 + '{"name": "inventory", "parameters": {}}', "inventory"),
        ("llama3", '{"a": ' * 50_000, None),
        ("llama3", "get 1 oak log", None),
        ("smollm2", '<tool_call>[{"name": "inventory", "arguments": {}}]</tool_call>', "inventory"),
        ("smollm2", '<tool_call>[{"name": "fly"}, {"name": "inventory"}]</tool_call>', "inventory"),
        ("smollm2", "<tool_call>[]</tool_call>", None),
        ("smollm2", '{"name": "inventory", "arguments": {}}', None),
    ],
)
def test_function_calls_are_read_in_the_format_of_the_family(calls, reply, action):
    assert FunctionCalls(TextCraft.action_format, calls=calls).parse_reply(reply) == action


@pytest.mark.parametrize("calls", CALL_FORMATS)
@pytest.mark.parametrize("action", ["get 1 oak log", "craft 1 crate using 2 log, 1 { } stick", "inventory"])
def test_calls_of_each_format_are_read_as_they_are_written(calls, action):
    agent = FunctionCalls(TextCraft.action_format, calls=calls)
    reply = agent.render_demo([DemoAction(action, "I try {this}.")], 0)
    assert agent.parse_reply(reply) == action and agent.action_mark in reply


def test_a_prompt_lists_the_functions_for_a_template_without_functions():
    agent = FunctionCalls(TextCraft.action_format, calls="smollm2")
    assert agent.tools is None
    assert all(f'"name": "{tool.name}"' in agent.instruction() for tool in TextCraft.action_format.tools)
    assert agent.parse_reply(agent.instruction()) and agent.parse_reply(agent.format_error)
    observed = agent.observe(StepResult("seen"), "go", 1)
    assert observed == {"role": "user", "content": "<tool_response>\nseen\n</tool_response>"}


def test_an_argument_of_several_types_has_an_example():
    schema = {"function": {"parameters": {"properties": {"n": {"type": "integer"}, "x": {"type": ["string", "null"]}}}}}
    assert example_arguments(schema) == {"n": 1, "x": "<x>"}


def test_an_unknown_format_of_calls_raises_config_error_with_the_closest_one():
    with pytest.raises(ConfigError, match=r"agent\.options\.calls='llama' .*Did you mean 'llama3'\?"):
        make_agent(AgentSettings("tools", {"calls": "llama"}), LineFormat())


def test_an_environment_without_tools_has_the_function_act():
    agent = FunctionCalls(LineFormat())
    assert [tool["function"]["name"] for tool in agent.tools] == ["act"]
    assert agent.parse_reply(agent.render_demo([DemoAction("go {north}", "why")], 0)) == "go {north}"
    assert agent.observe(StepResult("seen"), "go", 1) == {"role": "tool", "content": "seen"}
    assert FunctionCalls(SEARCH).format_error == "No function call found. Call one of: act(action)."


def test_string_arguments_keep_line_breaks_indentation_and_quotes():
    run = Tool("run", "Run code.", arguments(code={"type": "string"}), "run {code}")
    agent = FunctionCalls(LineFormat((run,)))
    action = "run if x:\n    print('a  b')"
    assert agent.parse_reply(agent.render_demo([DemoAction(action)], 0)) == action


# Context


def conversation(turns: int) -> list[Message]:
    messages: list[Message] = [{"role": "system", "content": "Rules."}, {"role": "user", "content": "Go."}]
    for turn in range(turns):
        messages.append({"role": "assistant", "content": f"**Summary:** after {turn}\nAction: {turn}"})
        messages.append({"role": "user", "content": f"seen {turn}"})
    return messages


def test_a_summary_replaces_removed_turns():
    view = Summary(turns=2).visible_messages(conversation(5), 2)
    assert view[1]["content"] == "Go.\n\nYour summary of the turns before: after 2"
    assert view[2:] == conversation(5)[8:]
    assert Summary(turns=2).visible_messages(conversation(2), 2) == conversation(2)


@pytest.mark.parametrize(
    ("reply", "summary"),
    [
        ("Summary: two logs\nAction: craft", "two logs"),
        ("**Summary:** two logs", "two logs"),
        ("Summary:\n- two logs\n- a stick\nThought: go on.\nAction: craft", "- two logs\n- a stick"),
        ("Summary: two logs\n<search>stick</search>", "two logs"),
        ("<think>I write\nSummary: no</think>\nSummary: yes\nAction: go", "yes"),
        ("Summary:\nAction: go", ""),
        ("In summary: nothing", ""),
    ],
)
def test_summaries_are_parsed_from_replies(reply, summary):
    assert summary_in(reply) == summary


def test_an_empty_summary_does_not_replace_the_last_one():
    messages = conversation(5)
    messages[6]["content"] = "Summary:\nAction: 2"
    assert Summary(turns=2).visible_messages(messages, 2)[1]["content"].endswith("the turns before: after 1")


def test_context_knows_the_prompt_length_of_an_agent_with_its_own_prompt():
    class Own(Act):
        def build_prompt(self, messages):
            return [*messages[:1], {"role": "user", "content": "Mind the gap."}, *messages[1:]]

    agent, policy = Own(LineFormat(), LastObservations(1)), ScriptedPolicy(["Action: a", "Action: b", "Action: c"])
    asyncio.run(play_episode(ITEM, talk_class()(turns=3), agent, policy, EpisodeLimits(3)))
    assert [m["content"] for m in policy.heard[-1]][:3] == ["Talk.", "Mind the gap.", "Begin."]
    assert [m["content"] for m in policy.heard[-1]][4::2] == [OMITTED, "heard 2"]


@pytest.mark.parametrize(
    ("context", "samples"),
    [(KeepAll(), 1), (LastObservations(2, 3), 4), (Summary(3, 2), 5), (Summary(1, 1), 11)],
    ids=repr,
)
def test_visible_messages_only_grow_until_turns_are_removed(context, samples):
    views = [context.visible_messages(conversation(turns), 2) for turns in range(12)]
    broken = [new[: len(old)] != old for old, new in pairwise(views)]
    assert 1 + sum(broken) == context.sample_count([True] * 12) == samples
    assert all(view[-1] == conversation(turns)[-1] for turns, view in enumerate(views) if turns)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"keep": "lst"}, "agent.context.keep='lst' is not allowed. Allowed: all, last, summary. Did you mean 'last'?"),
        ({"keep": ["all"]}, "agent.context.keep=['all'] is not allowed. Allowed: all, last, summary."),
        ({"keep": "last", "turns": 0}, "agent.context.turns=0 is not allowed. Allowed: a whole number >= 1."),
        ({"keep": "summary", "stride": 1.5}, "agent.context.stride=1.5 is not allowed. Allowed: a whole number >= 1."),
        ({"kep": "last"}, "agent.context.kep is not a setting. Did you mean 'keep'?"),
    ],
)
def test_invalid_contexts_raise_config_errors_naming_the_key(settings, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        make_context(settings)


# The registry


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("misspelt", "other_agents.py has no 'Notbook'"),
        ("broken", "does not import: ZeroDivisionError: division by zero ("),
        ("text", "points to other_agents:TEXT, which is not a subclass of Agent."),
        ("careless", "agent.options of 'careless': ValueError: no tokens ("),
    ],
)
def test_a_broken_package_of_agents_raises_config_errors(name, message, tmp_path, monkeypatch):
    metadata = tmp_path / "other_agents-1.0.dist-info"
    metadata.mkdir()
    metadata.joinpath("METADATA").write_text("Metadata-Version: 2.1\nName: other-agents\nVersion: 1.0\n")
    entries = (
        "misspelt = other_agents:Notbook\nbroken = broken_agents:Agent\ntext = other_agents:TEXT\n"
        "careless = careless_agents:Careless\n"
    )
    metadata.joinpath("entry_points.txt").write_text(f"[verl_agent.agents]\n{entries}")
    tmp_path.joinpath("other_agents.py").write_text("TEXT = 'no agent'\n")
    tmp_path.joinpath("broken_agents.py").write_text("1 / 0\n")
    careless = "    def __init__(self, *arguments):\n        raise ValueError('no tokens')\n"
    tmp_path.joinpath("careless_agents.py").write_text(
        f"from verl_agent.agents.plain import Raw\nclass Careless(Raw):\n{careless}"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=re.escape(message)):
        make_agent(AgentSettings(name), LineFormat())


@pytest.mark.parametrize("name", ["act", "react", "think", "plan", "tools", "raw"])
def test_registered_agents_are_made_with_options_and_context(name):
    agent = make_agent(AgentSettings(name, {"instructions": False}, {"keep": "last", "turns": 3}), LineFormat())
    assert (agent.context, agent.instructions) == (LastObservations(3), False)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("raect", {}, "agent.name='raect' is not registered. Did you mean 'react'?"),
        ("plan", {"reflect_evry": 2}, "agent.options.reflect_evry is not an option of 'plan'. Did you mean 'reflect_e"),
        ("plan", {"reflect_every": -1}, "agent.options.reflect_every=-1 is not allowed. Allowed: a whole number >= 0."),
        ("act", {"instructions": "no"}, "agent.options.instructions='no' is not allowed. Allowed: true, false."),
        ("act", {"context": 1}, "agent.options.context is not an option of 'act'. Known: instructions, retry_failed,"),
    ],
)
def test_invalid_agents_raise_config_errors_naming_the_key(name, options, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        make_agent(AgentSettings(name, options), LineFormat())
