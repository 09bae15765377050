"""Test that replies are recognised in the forms in which frameworks send them back, and that other text is not."""

import json
import time

import pytest

from verl_agent.envs.program.conversation import NEW_SEGMENTS, Counts
from verl_agent.envs.program.history import History, observe
from verl_agent.envs.program.requests import Call, Request, Said, to_answer

TOOLS = {"f": {"type": "function", "function": {"name": "f", "parameters": {}}}}
GO = Said("user", "go")
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": "Käse", "b": 1.0}}\n</tool_call>'
ARGUMENTS = {"a": "Käse", "b": 1.0}


class Told:
    """History with one conversation of a user, to which the policy writes replies."""

    def __init__(self, **fields) -> None:
        self.history, self.fields = History(), fields

    def answer(self, reply: str, *said: Said):
        request = Request(said or (GO,), tools=TOOLS, **self.fields)
        _, place = self.history.read(request)
        answer = to_answer(request, reply, Counts())
        self.history.add(place, reply, answer)
        return answer

    def reads(self, *said: Said) -> list[str]:
        messages, _ = self.history.read(Request(said, tools=TOOLS, **self.fields))
        return [message["content"] for message in messages if message["role"] == "assistant"]


def sent_back(answer, text=None, arguments=None) -> Said:
    ids = [call.id for call in answer.calls]
    given = ARGUMENTS if arguments is None else arguments
    return Said("assistant", answer.text if text is None else text, tuple(Call("f", given, one) for one in ids))


FORMS = {
    "as they were": {},
    "as text": {"arguments": json.dumps(ARGUMENTS)},
    "compact": {"arguments": json.dumps(ARGUMENTS, separators=(",", ":"))},
    "with characters as themselves": {"arguments": json.dumps(ARGUMENTS, ensure_ascii=False)},
    "in another order": {"arguments": {"b": 1.0, "a": "Käse"}},
    "as a whole number": {"arguments": {"a": "Käse", "b": 1}},
    "with other white space": {"text": "  I  look.\n"},
    "without the text beside it": {"text": ""},
}


@pytest.mark.parametrize("form", FORMS)
def test_a_reply_that_means_the_same_is_read_as_it_was_written(form):
    told, reply = Told(), f"I look.\n{CALL}"
    answer = told.answer(reply)
    assert told.reads(GO, sent_back(answer, **FORMS[form]), Said("tool", "ok")) == [reply]


def test_a_reply_comes_back_without_its_thought():
    told, reply = Told(), "<think>\nhm\n</think>\n\nyes"
    told.answer(reply)
    assert told.reads(GO, Said("assistant", "yes"), Said("user", "more")) == [reply]


@pytest.mark.parametrize("behind", ["", "</code>", "</code>\nCalling tools:\n[{'id': 'call_1'}]"])
def test_text_behind_a_stop_text_is_not_the_policys(behind):
    told = Told(limits={"stop": ["</code>", "Observation:"]})
    assert told.answer("I act. <code>1</code>").text == "I act. <code>1"
    assert told.reads(GO, Said("assistant", "I act. <code>1" + behind), Said("user", "2")) == ["I act. <code>1</code>"]


@pytest.mark.parametrize("more", [[], ["Go on."]])
def test_a_result_that_a_program_writes_behind_a_stop_text_is_its_own_text(more):
    """CrewAI adds the result of a tool to the reply, and asks on by a message of its own or by none."""
    told = Told(limits={"stop": ["\nObservation:"]})
    reply = "Action: search\nObservation:"
    told.answer(reply)
    added = Said("assistant", "Action: search\nObservation: 2.8 million people")
    request = Request((GO, added, *(Said("user", text) for text in more)), tools=TOOLS, schema={}, **told.fields)
    *messages, last = told.history.read(request)[0][2:]
    assert last["content"].endswith(request.directive)
    read = [*messages, {**last, "content": last["content"].removesuffix(request.directive)}]
    assert read[0] == {"role": "assistant", "content": reply}
    assert read[1:] == [{"role": "user", "content": text} for text in ("Observation: 2.8 million people", *more)]


def test_results_are_read_in_the_order_of_the_calls():
    told, other = Told(), CALL.replace("Käse", "Brot")
    first, second = (call.id for call in told.answer(f"{CALL}\n{other}").calls)
    made = Said("assistant", "", (Call("f", ARGUMENTS, first), Call("f", {"a": "Brot", "b": 1.0}, second)))
    late = Said("tool", "cheese", call_id=first.replace("call_", "toolu_"))
    for results in ([Said("tool", "bread", call_id=second), late], [Said("tool", "cheese"), Said("tool", "bread")]):
        messages, _ = told.history.read(Request((GO, made, *results), tools=TOOLS))
        text = messages[-1]["content"]
        assert text.index("cheese") < text.index("bread")


@pytest.mark.parametrize(
    ("arguments", "written"),
    [('{"a": 1}', '{"a": 1}'), ("", "{}"), (None, "{}"), ("{a", '"{a"'), ({"a": 1}, '{"a": 1}')],
)
def test_a_call_of_another_author_has_its_arguments_as_an_object(arguments, written):
    (read,) = Told().reads(GO, Said("assistant", "", (Call("f", arguments, "x"),)), Said("tool", "ok"))
    assert read == f'<tool_call>\n{{"name": "f", "arguments": {written}}}\n</tool_call>'


def test_a_framework_that_writes_calls_into_its_text_is_understood_by_their_ids():
    told, reply = Told(), f"I look.\n{CALL}"
    answer = told.answer(reply)
    text = f"I look.\nCalling tools:\n[{{'id': '{answer.calls[0].id}', 'name': 'f'}}]"
    assert told.reads(GO, Said("assistant", text), Said("user", "ok")) == [reply]


def test_two_replies_of_one_meaning_keep_their_own_words_by_place():
    told = Told()
    first = told.answer(CALL)
    flat = CALL.replace("\n", "")
    so_far = (GO, sent_back(first), Said("tool", "ok"))
    second = told.answer(flat, *so_far)
    own_ids = Said("assistant", "", (Call("f", ARGUMENTS, "theirs"),))
    assert told.reads(*so_far, own_ids, Said("tool", "ok")) == [CALL, flat]
    assert second.calls[0].id != first.calls[0].id


def test_a_refused_reply_is_read_in_its_own_conversation_alone():
    told, bad = Told(), [{"role": "assistant", "content": "?"}, {"role": "user", "content": "No."}]
    request = Request((GO,), tools=TOOLS)
    _, place = told.history.read(request)
    answer = to_answer(request, "done", Counts())
    told.history.add(place, "done", answer, bad)
    assert told.reads(GO, Said("assistant", "done"), Said("user", "more")) == ["?", "done"]
    assert told.reads(Said("user", "other"), Said("assistant", "done"), Said("user", "more")) == ["done"]


def test_two_samples_of_one_prompt_keep_their_own_words_by_id():
    told, flat = Told(), CALL.replace("\n", "")
    first, second = told.answer(CALL), told.answer(flat)
    assert told.reads(GO, sent_back(first), Said("tool", "ok")) == [CALL]
    assert told.reads(GO, sent_back(second), Said("tool", "ok")) == [flat]


@pytest.mark.parametrize(
    "other", [Said("assistant", "I looked."), Said("assistant", "I look.", (Call("f", {"a": "Brot"}, ""),))]
)
def test_another_text_is_read_as_it_was_sent(other):
    told = Told()
    told.answer(f"I look.\n{CALL}")
    (read,) = told.reads(GO, other, Said("user", "ok"))
    assert other.text in read and "Käse" not in read


def test_a_changed_conversation_is_counted_and_its_first_difference_recorded():
    before = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "one two three"}]
    same, changed = [*before, {"role": "user", "content": "b"}], [before[0], {**before[1], "content": "one 2 three"}]
    assert observe(before, same).info == {NEW_SEGMENTS: 0.0}
    step = observe(before, [*changed, same[2]])
    assert step.info == {NEW_SEGMENTS: 1.0}
    differs = json.loads(step.observation.partition(" ")[2])["differs"]
    assert differs == {"message": 1, "role": "assistant", "was": "one two three", "is": "one 2 three"}


@pytest.mark.parametrize(
    "hostile",
    [
        "<tool_call>",
        "<tool_call>\n         ",
        "<TOOL_CALL> a",
        "<tool_call>{}",
        "<think>",
        "a <think>",
        "</think>",
        "<tool_call>{",
        "<stop",
    ],
)
def test_reading_a_reply_takes_time_linear_in_its_length(hostile):
    """Five times the text takes less than fifteen times the time; a quadratic search takes twenty-five times it."""

    def seconds(size: int) -> float:
        request, reply = Request((GO,), tools=TOOLS, limits={"stop": ["<stop>"]}), hostile * (size // len(hostile))
        start = time.process_time()
        assert to_answer(request, reply, Counts()).calls == ()
        return time.process_time() - start

    seconds(1000)
    least = min(seconds(250_000) for _ in range(2))  # of two: other processes take caches and time
    assert least < max(15 * min(seconds(50_000) for _ in range(3)), 0.5)
