"""`check_adapter` finds each way of breaking the contract, and says so in words."""

import asyncio
import itertools
import time
from collections.abc import Sequence
from typing import ClassVar

import pytest

from verl_agent.envs.base import EnvAdapter
from verl_agent.envs.check import BAD_ACTIONS, Report, check_adapter
from verl_agent.envs.trial import MAX_MESSAGE
from verl_agent.types import Message, Move, StepResult, TaskItem


class Sound(EnvAdapter):
    """Keeps the contract: say the word of the item."""

    @classmethod
    def tasks(cls, split: str) -> Sequence[TaskItem]:
        return [TaskItem("sound", f"{split}-{n}", {"word": f"{split} {n}"}) for n in range(3)]

    async def reset(self, item: TaskItem) -> list[Message]:
        self.word, self.ended = item.data["word"], False
        return [{"role": "user", "content": f"Say {self.word}."}]

    async def step(self, action: str) -> StepResult:
        if self.ended:
            return StepResult("Over.", terminated=True)
        self.ended = action == self.word
        return StepResult("Yes." if self.ended else "No.", float(self.ended), self.ended, {"said": 1.0})

    def demonstration(self, item: TaskItem) -> Sequence[Move]:
        return [Move("hello"), Move(item.data["word"])]


def finding(report: Report, check: str) -> str:
    """What the named check found, in words."""
    found = {finding.check: str(finding) for finding in report.findings}
    assert check in found, str(report)
    return found[check]


def test_a_sound_adapter_passes_every_check():
    report = check_adapter(Sound)
    assert (report.findings, report.notes, len(report.passed)) == ([], [], 12)


def test_a_split_without_items():
    class Empty(Sound):
        splits = ("train", "test", "extra")

        @classmethod
        def tasks(cls, split):
            return [] if split == "extra" else super().tasks(split)

    assert "tasks('extra') returned no items" in finding(check_adapter(Empty), "tasks are listed")


def test_a_split_that_raises():
    class Missing(Sound):
        @classmethod
        def tasks(cls, split):
            raise FileNotFoundError("tasks.json")

    assert "raised FileNotFoundError: tasks.json" in finding(check_adapter(Missing), "tasks are listed")


LISTED = [
    (["first"], "tasks are listed", "listed 'first'"),
    ([TaskItem("t", "1"), TaskItem("t", "1")], "ids are unique and splits apart", "tasks('train') listed 1 ids twice"),
    ([TaskItem("t", "1")], "ids are unique and splits apart", "shares 1 ids with 'test', such as '1'"),
    ([TaskItem("t", "1", {"word": {"a", "set"}})], "items are JSON", "raised TypeError"),
    ([TaskItem("t", "1", {"word": float("inf")})], "items are JSON", "raised ValueError"),
    ([TaskItem("t", "1", {"word": ("a", "tuple")})], "items are JSON", "has data that JSON changes in item '1'"),
]


@pytest.mark.parametrize(("items", "check", "words"), LISTED)
def test_items_that_break_the_contract(items, check, words):
    class Listing(Sound):
        @classmethod
        def tasks(cls, split):
            return items

    assert words in finding(check_adapter(Listing), check)


def test_an_id_that_means_two_items():
    class Vague(Sound):
        splits = ("train", "other")

        @classmethod
        def tasks(cls, split):
            return [TaskItem("vague", "0", {"word": split})]

    assert "reuses the id '0'" in finding(check_adapter(Vague), "ids are unique and splits apart")


def test_tasks_that_come_in_another_order():
    calls = itertools.count()

    class Unsorted(Sound):
        @classmethod
        def tasks(cls, split):
            items = super().tasks(split)
            return items[::-1] if next(calls) % 4 > 1 else items

    assert "other items the second time" in finding(check_adapter(Unsorted), "tasks are the same twice")


def test_options_that_the_constructor_refuses():
    found = finding(check_adapter(Sound, {"colour": "red"}), "sessions begin and close")
    assert "Sound(**{'colour': 'red'}) raised TypeError" in found


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ([], "reset('train-0') returned []"),
        ("Say it.", "reset('train-0') returned 'Say it.'"),
        ([{"role": "user"}], "raised KeyError: 'content'"),
        ([{"role": "narrator", "content": "Once."}], "gave the role 'narrator'"),
        ([{"role": "assistant", "content": "OK."}], "ended with a message of 'assistant'"),
        ([{"role": "user", "content": ""}], "gave the text ''"),
        ([{"role": "user", "content": "x" * (MAX_MESSAGE + 1)}], "gave 20,001 characters"),
    ],
)
def test_prompts_that_break_the_contract(prompt, words):
    class Prompting(Sound):
        async def reset(self, item):
            return prompt

    assert words in finding(check_adapter(Prompting), "sessions begin and close")


def test_close_without_a_reset():
    class Careless(Sound):
        async def close(self):
            del self.word

    assert "close() raised AttributeError" in finding(check_adapter(Careless), "sessions begin and close")


def test_a_reset_that_hangs():
    class Stuck(Sound):
        async def reset(self, item):
            time.sleep(1.0)
            return await super().reset(item)

    assert "took over 0.1 s" in finding(check_adapter(Stuck, timeout_s=0.1), "sessions begin and close")


def test_a_bad_action_that_raises():
    class Brittle(Sound):
        async def step(self, action):
            action.split()[0]
            return await super().step(action)

    assert "step('') raised IndexError" in finding(check_adapter(Brittle), "bad actions are answered")


def test_an_answer_that_grows_with_the_action():
    class Echo(Sound):
        async def step(self, action):
            answer = await super().step(action)
            return StepResult(f"{answer.observation} You said: {action}", answer.reward, answer.terminated)

    assert max(map(len, BAD_ACTIONS)) > MAX_MESSAGE
    assert "Cut texts to at most 20,000 characters" in finding(check_adapter(Echo), "bad actions are answered")


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (("No.", 0.0, False, False, {}), "Return a StepResult"),
        (StepResult(""), "gave the text ''"),
        (StepResult("No.", float("nan")), "gave reward=nan"),
        (StepResult("No.", info={"why": "wrong"}), "gave why='wrong'"),
        (StepResult("No.", terminated=0), "gave terminated=0"),
        (StepResult("Yes.", 1.0), "earned 1.0. Reward only what solves the task."),
    ],
)
def test_answers_that_break_the_contract(answer, words):
    class Answering(Sound):
        async def step(self, action):
            return answer

    assert words in finding(check_adapter(Answering), "bad actions are answered")


def test_answers_that_differ_from_play_to_play():
    numbers = itertools.count()

    class Random(Sound):
        async def step(self, action):
            answer = await super().step(action)
            return StepResult(f"{answer.observation} {next(numbers)}", answer.reward, answer.terminated)

    assert "when played again" in finding(check_adapter(Random), "episodes replay")
    assert not check_adapter(Random, replay_exact=False).findings


def test_sessions_that_share_their_state():
    class Shared(Sound):
        state: ClassVar[dict[str, str]] = {}

        async def reset(self, item):
            self.state["word"] = item.data["word"]
            return await super().reset(item)

        async def step(self, action):
            self.word = self.state["word"]
            return await super().step(action)

    assert "beside another session" in finding(check_adapter(Shared), "sessions do not mix")


def test_sessions_that_disturb_each_other_in_threads():
    playing: set[object] = set()

    class Racing(Sound):
        async def step(self, action):
            playing.add(self)
            time.sleep(0.01)
            crowd = len(playing)
            playing.discard(self)
            answer = await super().step(action)
            return StepResult(f"{answer.observation} {crowd}", answer.reward, answer.terminated)

    assert "beside other threads" in finding(check_adapter(Racing), "threads do not mix")


def test_a_loop_that_is_kept_from_another_thread():
    class OneLoop(Sound):
        loops: ClassVar[list[asyncio.AbstractEventLoop]] = []

        async def reset(self, item):
            self.loops.append(asyncio.get_running_loop())
            if self.loops[0] is not self.loops[-1]:
                raise RuntimeError("attached to a different loop")
            return await super().reset(item)

    assert "different loop" in finding(check_adapter(OneLoop), "sessions begin and close")


def test_an_oracle_that_fails():
    class Wrong(Sound):
        def demonstration(self, item):
            return [Move("hello")]

    assert "earned 0.0 of 1.0" in finding(check_adapter(Wrong), "demonstrations solve")


def test_an_oracle_that_says_nothing():
    class Speechless(Sound):
        def demonstration(self, item):
            return []

    assert "returned no moves" in finding(check_adapter(Speechless), "an oracle answers")


def test_no_oracle_is_noted_and_allowed():
    class Hard(Sound):
        def demonstration(self, item):
            raise NotImplementedError

    report = check_adapter(Hard)
    assert (report.findings, report.notes) == ([], ["6 of 6 items have no oracle to be solved with."])


def test_rewards_after_the_end():
    class Generous(Sound):
        async def step(self, action):
            won = action == self.word
            return StepResult("Yes." if won else "No.", float(won), won)

    found = finding(check_adapter(Generous), "nothing is earned after the end")
    assert "step('train 0') after the end of 'train-0' earned 1.0" in found


def test_the_report_is_readable():
    class Empty(Sound):
        splits = ()

    text = "FAIL  tasks are listed: splits is empty. Name at least one split."
    assert str(check_adapter(Empty)) == text
    assert str(check_adapter(Sound)).startswith("ok    tasks are listed\nok    ids are unique")
