"""Tests of programs with their own agent loop: what the model reads, how they end, and what is refused."""

import asyncio
import json
import sys
from functools import partial
from pathlib import Path

import pytest

from tests import ROOT
from tests.support.attempts import play_until_valid
from tests.support.escapes import WAYS, left
from tests.support.fakes import ScriptedPolicy
from tests.support.programs import ASK, TASKS, make_program, run
from verl_agent.agents.program import ProgramAgent
from verl_agent.agents.settings import AgentSettings
from verl_agent.config.settings import AgentEnv
from verl_agent.envs.program.adapter import Program
from verl_agent.envs.program.conversation import NEW_SEGMENTS
from verl_agent.envs.settings import EnvSettings
from verl_agent.errors import ConfigError, ContractError
from verl_agent.rollout.episode import EpisodeLimits
from verl_agent.types import StopReason

__all__ = ["ASK", "TASKS", "run"]


@pytest.fixture
def program(tmp_path):
    """Function that makes the environment of a program, from its text."""
    return partial(make_program, tmp_path)


def test_the_model_reads_what_the_program_sends(program):
    episode, policy = run(
        program(
            """
            task = json.loads(os.environ["VERL_AGENT_TASK"])
            messages = [{"role": "system", "content": "Rhyme."}, user(task["word"])]
            reply = ask(messages)
            messages += [reply, user("another")]
            print("log line")
            print(json.dumps({"reward": float(ask(messages)["content"] == "bee")}))
            """
        ),
        ["sea", "bee"],
    )
    prompt = [{"role": "system", "content": "Rhyme."}, {"role": "user", "content": "tree"}]
    assert policy.heard == [
        prompt,
        [*prompt, {"role": "assistant", "content": "sea"}, {"role": "user", "content": "another"}],
    ]
    assert (episode.stop, episode.reward, len(episode.turns)) == (StopReason.TERMINATED, 1.0, 2)
    assert [message["content"] for message in episode.messages][2:5] == ["sea", "another", "bee"]


def test_a_changed_history_and_a_second_conversation_are_read_as_sent(program):
    episode, policy = run(
        program(
            """
            first = ask([user("a")])
            ask([user("a"), {"role": "assistant", "content": "changed"}, user("b")])
            ask([user("another")])
            ask([user("another"), {"role": "assistant", "content": "three"}, user("x"), user("y")])
            print(json.dumps({"reward": 0.5}))
            """
        ),
        ["one", "two", "three", "four"],
    )
    assert [[message["content"] for message in heard] for heard in policy.heard] == [
        ["a"],
        ["a", "changed", "b"],
        ["another"],
        ["another", "three", "x", "y"],
    ]
    assert episode.reward == 0.5
    # records hold the same conversations
    agent = ProgramAgent(Program.action_format)
    for turn, heard in enumerate(policy.heard):
        assert agent.visible_messages(episode.messages[: 1 + 2 * turn], 1) == heard


def test_functions_are_listed_called_and_continued_word_for_word(program):
    call = 'I look.\n<tool_call>\n{"name": "look", "arguments": {"at": "map"}}\n</tool_call>'
    _, policy = run(
        program(
            """
            tools = [{"type": "function", "function": {"name": "look", "parameters": {}}}]
            messages = [user("where?")]
            reply = ask(messages, tools=tools)
            made, = reply["tool_calls"]
            assert made["function"] == {"name": "look", "arguments": '{"at": "map"}'}, made
            assert reply["content"] == "I look."
            messages += [reply, {"role": "tool", "tool_call_id": made["id"], "content": "a lake"}]
            assert ask(messages, tools=tools) == {"role": "assistant", "content": "here"}
            print(json.dumps({"reward": 1}))
            """
        ),
        [call, "here"],
    )
    first, second = policy.heard
    assert first[0]["role"] == "system"
    assert '{"name": "look", "parameters": {}}' in first[0]["content"]
    assert second[: len(first)] == first
    assert second[len(first) :] == [
        {"role": "assistant", "content": call},
        {"role": "user", "content": "<tool_response>\na lake\n</tool_response>"},
    ]


TOOLS = """
tools = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in ("look", "go")]
messages = [user("where?")]
"""
LOOK, GO = (
    f'<tool_call>\n{{"name": "{name}", "arguments": {{"to": "größe <tool_call>"}}}}\n</tool_call>'
    for name in ("look", "go")
)


def test_several_calls_are_passed_on_and_answered_each(program):
    _, policy = run(
        program(
            TOOLS
            + """
reply = ask(messages, tools=tools)
look, go = reply["tool_calls"]
assert json.loads(go["function"]["arguments"]) == {"to": "größe <tool_call>"} and reply["content"] == "I act."
messages += [reply]
for one in (look, go):
    messages += [{"role": "tool", "tool_call_id": one["id"], "content": one["function"]["name"]}]
ask(messages, tools=tools)
print(json.dumps({"reward": 1}))
"""
        ),
        [f"I act.\n{LOOK}\n{GO}", "here"],
    )
    result = "<tool_response>\n{}\n</tool_response>"
    assert policy.heard[1][-1]["content"] == f"{result.format('look')}\n{result.format('go')}"


def test_a_program_that_takes_one_call_gets_one_and_the_model_reads_that_the_rest_was_not_done(program):
    _, policy = run(
        program(
            TOOLS
            + """
reply = ask(messages, tools=tools, parallel_tool_calls=False)
one, = reply["tool_calls"]
messages += [reply, {"role": "tool", "tool_call_id": one["id"], "content": "a lake"}]
ask(messages, tools=tools, parallel_tool_calls=False)
print(json.dumps({"reward": 1}))
"""
        ),
        [f"{LOOK}\n{GO}", "here"],
    )
    assert "at most one function" in policy.heard[0][0]["content"]
    assert policy.heard[1][-1]["content"] == (
        "<tool_response>\na lake\n</tool_response>\n"
        "<tool_response>\ngo was not called: the program takes one call in each reply.\n</tool_response>"
    )


@pytest.mark.parametrize(
    ("reply", "kind", "part"),
    [
        (LOOK[:-30], "broken_json", "is cut off"),
        (LOOK.replace('"look",', '"look"'), "broken_json", "Expecting ',' delimiter"),
        (LOOK.replace("look", "lok"), "unknown_function", "Did you mean 'look'?"),
        (LOOK.replace('{"to": "größe <tool_call>"}', "[1]"), "wrong_argument", "no JSON object"),
    ],
)
def test_a_call_that_no_program_can_take_is_answered_and_the_program_waits(program, reply, kind, part):
    episode, policy = run(
        program(
            TOOLS
            + """
reply = ask(messages, tools=tools)
assert [one["function"]["name"] for one in reply["tool_calls"]] == ["look"], reply
messages += [reply, {"role": "tool", "tool_call_id": reply["tool_calls"][0]["id"], "content": "a lake"}]
assert ask(messages, tools=tools)["content"] == "here"
print(json.dumps({"reward": 1}))
"""
        ),
        [reply, LOOK, "here"],
    )
    assert episode.reward == 1 and len(episode.turns) == 3
    assert episode.turns[0].step.info[f"call_error_{kind}"] == 1
    assert policy.heard[1][-2:] == [
        {"role": "assistant", "content": reply},
        {"role": "user", "content": policy.heard[1][-1]["content"]},
    ]
    assert part in policy.heard[1][-1]["content"] and policy.heard[1][-1]["content"].startswith("<tool_response>")
    # the program's next request is read with what was said here, so the episode stays one sample
    accepted, result = {"role": "assistant", "content": LOOK}, "<tool_response>\na lake\n</tool_response>"
    assert policy.heard[2] == [*policy.heard[1], accepted, {"role": "user", "content": result}]
    assert episode.turns[1].step.info[NEW_SEGMENTS] == 0


def test_a_call_inside_of_thinking_is_not_passed_on(program):
    _, policy = run(
        program(
            TOOLS
            + """
reply = ask(messages, tools=tools)
assert "tool_calls" not in reply and reply["content"].endswith("I stay."), reply
print(json.dumps({"reward": 1}))
"""
        ),
        [f"<think>{LOOK}</think>\nI stay."],
    )
    assert len(policy.heard) == 1


@pytest.mark.parametrize("stream", [False, True])
def test_anthropics_client_calls_functions_and_continues_word_for_word(program, stream):
    pytest.importorskip("anthropic", reason="anthropic is not installed: pip install anthropic")
    call = 'I look.\n<tool_call>\n{"name": "look", "arguments": {"at": "map"}}\n</tool_call>'
    episode, policy = run(
        program(
            f"""
            import anthropic
            client = anthropic.Anthropic()
            def create(messages):
                asked = dict(model="m", max_tokens=9, system="Find it.", messages=messages, tools=tools)
                if not {stream}:
                    return client.messages.create(**asked)
                with client.messages.stream(**asked) as events:
                    return events.get_final_message()
            tools = [{{"name": "look", "input_schema": {{"type": "object"}}}}]
            messages = [user("where?")]
            reply = create(messages)
            text, made = reply.content
            assert (text.text, made.name, made.input) == ("I look.", "look", {{"at": "map"}}), reply
            result = {{"type": "tool_result", "tool_use_id": made.id, "content": "a lake"}}
            content = [one.model_dump() for one in reply.content]
            messages += [{{"role": "assistant", "content": content}}, {{"role": "user", "content": [result]}}]
            last = create(messages)
            assert (last.content[0].text, last.stop_reason) == ("here", "end_turn"), last
            print(json.dumps({{"reward": 1}}))
            """
        ),
        [call, "here"],
    )
    assert not episode.error
    first, second = policy.heard
    assert first[0]["content"].startswith("Find it.")
    assert second == [
        *first,
        {"role": "assistant", "content": call},
        {"role": "user", "content": "<tool_response>\na lake\n</tool_response>"},
    ]


def test_requests_at_the_same_time_are_answered_one_after_another(program):
    episode, policy = run(
        program(
            """
            from concurrent.futures import ThreadPoolExecutor
            with ThreadPoolExecutor(3) as pool:
                texts = list(pool.map(lambda text: ask([user(text)])["content"], "abc"))
            print(json.dumps({"reward": len(set(texts))}))
            """
        ),
        ["1", "2", "3"],
    )
    assert sorted(heard[-1]["content"] for heard in policy.heard) == ["a", "b", "c"]
    assert (episode.reward, len(episode.turns)) == (3.0, 3)


def test_a_request_that_the_client_repeats_costs_no_turn(program):
    episode, _ = run(
        program(
            """
            body = {"model": "m", "messages": [user("a")]}
            first = json.loads(post(body))["choices"][0]["message"]
            again = json.loads(post(body, **{"X-Stainless-Retry-Count": "1"}))["choices"][0]["message"]
            print(json.dumps({"reward": float(first == again)}))
            """
        ),
        ["once"],
    )
    assert (episode.reward, len(episode.turns)) == (1.0, 1)


def test_a_stream_has_the_same_text(program):
    episode, _ = run(
        program(
            """
            lines = post({"model": "m", "messages": [user("a")], "stream": True}).split("\\n\\n")
            parts = [json.loads(line[6:])["choices"][0] for line in lines if line.startswith("data: {")]
            text = "".join(part["delta"].get("content") or "" for part in parts)
            assert parts[-1]["finish_reason"] == "stop" and lines[-2] == "data: [DONE]"
            print(json.dumps({"reward": float(text == "streamed")}))
            """
        ),
        ["streamed"],
    )
    assert episode.reward == 1.0


@pytest.mark.parametrize(
    ("request_text", "reason"),
    [
        ("ask([user('a')], n=2)", "n=2 is not supported"),
        ("ask([user('a')], stop=3)", "stop=3 is not allowed"),
        ("ask([user('a')], response_format={'type': 'grammar'})", "the format 'grammar' of the reply is not supported"),
        ("ask([])", "messages must be a list"),
        ("ask([{'role': 'assistant', 'content': 'a'}])", "End with a user message"),
        ("ask([{'role': 'user', 'content': [{'type': 'image_url'}]}])", "Images, sound and files are not supported"),
        (
            "json.loads(post({'messages': ['a']}, path='/messages'))",
            'the message "a" has no known role. Allowed: system',
        ),
        ("json.loads(post({'messages': [user(None)]}, path='/messages'))", "Correct its messages or tools."),
        ("json.loads(post({'messages': [user('a')]}, key='guess'))", "the API key is not that of this session"),
    ],
)
def test_what_cannot_be_answered_is_refused_with_a_reason_and_costs_no_turn(program, request_text, reason):
    episode, _ = run(
        program(
            f"""
            refused = {request_text}
            assert {reason!r} in refused["error"]["message"], refused
            ask([user("a")])
            print(json.dumps({{"reward": refused["status"]}}))
            """
        ),
        ["fine"],
    )
    assert not episode.error
    assert (episode.reward in (400, 401), len(episode.turns)) == (True, 1)


@pytest.mark.parametrize(
    ("text", "turns", "error"),
    [
        ("sys.exit('no key')", 0, "ended without a request to the model. Its errors: no key"),
        ("ask([user('a')]); raise ValueError('lost')", 1, "ended with status 1. Its errors: Traceback"),
        ("ask([user('a')]); print('done')", 1, "ended with 'done', which is no result"),
        ("ask([user('a')])", 1, "ended with '', which is no result"),
    ],
)
def test_a_program_that_fails_is_an_environment_error(program, text, turns, error):
    episode, _ = run(program(text), ["one"])
    assert (episode.stop, len(episode.turns)) == (StopReason.ENV_ERROR, turns)
    assert error in str(episode.error)


@pytest.mark.parametrize("reward", ["'1.0'", "float('nan')", "None", "[1.0]"])
def test_a_reward_of_a_program_that_is_no_number_stops_the_run(program, reward):
    with pytest.raises(ContractError, match=r"step gave reward=.* of env 'program'\. Allowed: a finite number"):
        run(program(f"ask([user('a')]); print(json.dumps({{'reward': {reward}}}))"), ["one"])


ENDS = {
    "sleeps": ("time.sleep(1000)", StopReason.ENV_ERROR),
    "ends": ("print('{\"reward\": 1}')", StopReason.TERMINATED),
    "fails": ("sys.exit(3)", StopReason.ENV_ERROR),
    "asks": ("ask([user('b')])", StopReason.TURN_LIMIT),
}
"""What a program does after it has started children, and how its episode stops."""


@pytest.mark.parametrize("end", ENDS)
def test_an_episode_leaves_no_process_and_no_folder(end, program, tmp_path):
    last, stop = ENDS[end]
    text = f"""
    sys.path.insert(0, {str(ROOT)!r})
    from tests.support.escapes import WAYS, spawn
    ask([user("a")])
    pids = [os.getpid(), *(spawn(way, {str(tmp_path)!r} + "/" + way) for way in WAYS)]
    open({str(tmp_path / "pids")!r}, "w").write(json.dumps([pids, os.getcwd()]))
    {last}
    """
    episode, _ = run(program(text), ["one"], max_turns=1 if end == "asks" else 8, timeout_s=5.0)
    assert episode.stop is stop
    pids, folder = json.loads((tmp_path / "pids").read_text())
    assert len(pids) == 1 + len(WAYS) and left(pids) == []
    assert not Path(folder).exists()


def test_twenty_episodes_leave_no_process(program, tmp_path):
    pids = tmp_path / "pids"
    env = program(f"""
    import subprocess
    child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    open({str(pids)!r}, "a").write(f"{{child.pid}}\\n")
    ask([user("a")])
    print('{{"reward": 1}}')
    """)
    assert {run(env, ["one"])[0].stop for _ in range(20)} == {StopReason.TERMINATED}
    started = list(map(int, pids.read_text().split()))
    assert len(started) == 20 and left(started) == []


def test_the_turn_limit_ends_the_program(program):
    episode, _ = run(program("while True: ask([user('a')])"), ["x"] * 3, max_turns=3)
    assert (episode.stop, len(episode.turns)) == (StopReason.TURN_LIMIT, 3)


def test_an_episode_continues_after_an_error_if_the_program_is_deterministic(program, tmp_path):
    marker = tmp_path / "failed"
    env = program(
        f"""
        messages = [user("a")]
        reply = ask(messages)
        if not os.path.exists({str(marker)!r}):
            open({str(marker)!r}, "w").close()
            sys.exit("the network was down")
        messages += [reply, user("b")]
        ask(messages)
        print(json.dumps({{"reward": 1}}))
        """,
        deterministic=True,
    )
    attempts = asyncio.run(
        play_until_valid(
            env.tasks("train")[0],
            env.new_session,
            lambda: ProgramAgent(env.action_format),
            lambda: ScriptedPolicy(["one", "two"]),
            EpisodeLimits(5, 30.0, retries=1),
        )
    )
    (episode,) = attempts
    assert (episode.reward, [turn.reply.text for turn in episode.turns]) == (1.0, ["one", "two"])


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"command": "python agent.py"}, "env.options.command='python agent.py' is not allowed"),
        ({"command": ["no-such-program"]}, "'no-such-program' is not a program"),
        ({"tasks": "/absent.jsonl"}, "env.options.tasks='/absent.jsonl' is neither a file"),
        ({"deterministic": 1}, "env.options.deterministic=1 is not allowed"),
    ],
)
def test_bad_options_name_the_key(tmp_path, options, error):
    (tmp_path / "tasks.jsonl").write_text('{"id": "a", "split": "train"}')
    with pytest.raises(ConfigError) as raised:
        Program(**{"command": [sys.executable], "tasks": str(tmp_path / "tasks.jsonl"), **options})
    assert error in str(raised.value)


def test_another_agent_than_program_is_refused(tmp_path):
    (tmp_path / "tasks.jsonl").write_text('{"id": "a", "split": "train"}')
    options = {"command": [sys.executable], "tasks": str(tmp_path / "tasks.jsonl")}
    env = EnvSettings(name="program", options=options)
    assert isinstance(AgentEnv(env=env, agent=AgentSettings(name="program")).new_agent(), ProgramAgent)
    with pytest.raises(ConfigError, match=r"agent\.name='react' cannot act in env\.name='program'\. Set agent"):
        AgentEnv(env=env).new_agent()


@pytest.mark.parametrize(
    ("line", "error"),
    [('{"id": "a"}', "It needs id and split"), ('{"id": "a", "split": "b", "dat": 1}', "'dat' is not a field")],
)
def test_a_bad_task_names_its_line(tmp_path, line, error):
    (tmp_path / "tasks.jsonl").write_text('{"id": "x", "split": "train"}\n' + line)
    with pytest.raises(ConfigError) as raised:
        Program([sys.executable], str(tmp_path / "tasks.jsonl"))
    assert error in str(raised.value)
    assert "tasks.jsonl:2" in str(raised.value)


def test_a_separator_of_lines_inside_a_text_does_not_end_a_task(tmp_path):
    file = tmp_path / "tasks.jsonl"
    file.write_text(json.dumps({"id": "a", "split": "train", "data": {"q": "1\u20282"}}, ensure_ascii=False) + "\n")
    (item,) = Program([sys.executable], str(file)).tasks("train")
    assert item.data == {"q": "1\u20282"}


@pytest.mark.parametrize("task", [{"id": 1, "split": "train"}, {"id": "a", "split": 3}])
def test_an_id_or_a_split_that_is_no_text_is_named_with_its_line(tmp_path, task):
    file = tmp_path / "tasks.jsonl"
    file.write_text(json.dumps(task))
    with pytest.raises(ConfigError, match=r"tasks\.jsonl:1 is not a task .*must be texts"):
        Program([sys.executable], str(file))


def test_a_request_that_forbids_calls_gets_text_and_continues_the_conversation(program):
    called = '<tool_call>{"name": "go", "arguments": {}}</tool_call>'
    episode, policy = run(
        program(
            """
            tools = [{"type": "function", "function": {"name": "go", "parameters": {}}}]
            messages = [user("Say it.")]
            messages += [ask(messages, tools=tools), user("And now?")]
            answer = ask(messages, tools=tools, tool_choice="none")
            print(json.dumps({"reward": float("tool_calls" not in answer and "<tool_call>" in answer["content"])}))
            """
        ),
        ["Hm.", called],
    )
    assert episode.reward == 1.0, episode.error
    first, second = policy.heard
    assert second[: len(first)] == first and second[-1]["content"] == "And now?\n\nCall no function in this reply."
    assert episode.turns[0].step.info[NEW_SEGMENTS] == 0
