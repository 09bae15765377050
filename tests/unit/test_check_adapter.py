"""`check_adapter` finds each way of breaking the contract, and says so in words."""

import asyncio
import itertools
import re
import threading
import time
from collections.abc import Sequence
from typing import ClassVar, TextIO

import pytest

from verl_agent.envs.base import EnvAdapter, Hosting
from verl_agent.envs.testing.check import Report, check_adapter
from verl_agent.envs.testing.contract import BAD_ACTIONS, CROWDED, SOLVED, fuzz
from verl_agent.envs.testing.violation import MAX_MESSAGE
from verl_agent.types import DemoAction, Message, StepResult, TaskItem


class Sound(EnvAdapter):
    """Keeps the contract: say the word of the item."""

    def tasks(self, split: str) -> Sequence[TaskItem]:
        return [TaskItem("sound", f"{split}-{n}", {"word": f"{split} {n}"}) for n in range(3)]

    async def reset(self, item: TaskItem) -> list[Message]:
        self.word, self.ended = item.data["word"], False
        return [{"role": "user", "content": f"Say {self.word}."}]

    async def step(self, action: str) -> StepResult:
        if self.ended:
            return StepResult("Over.", terminated=True)
        self.ended = action == self.word
        info = {"said": 1.0} if self.ended else {"invalid_action": 1.0}
        return StepResult("Yes." if self.ended else "No.", float(self.ended), self.ended, info)

    def demonstration(self, item: TaskItem) -> Sequence[DemoAction]:
        return [DemoAction("hello"), DemoAction(item.data["word"])]


def finding(report: Report, check: str) -> str:
    """What the named check found, in words."""
    found = {finding.check: str(finding) for finding in report.findings}
    assert check in found, str(report)
    return found[check]


def test_a_sound_adapter_passes_every_check():
    said: list[str] = []
    report = check_adapter(Sound, name="sound", say=said.append)
    assert (report.findings, report.notes, len(report.passed)) == ([], [], 16)
    assert said == str(report).splitlines(), "each line is told when it is known"
    assert re.search(
        r"^ok    a full host fits .*: \d+ MiB, and about [\d.]+ for each of at most 64 sessions$", said[-1]
    )


def test_a_split_without_items():
    class Empty(Sound):
        splits = ("train", "test", "extra")

        def tasks(self, split):
            return [] if split == "extra" else super().tasks(split)

    assert "tasks('extra') returned no items" in finding(check_adapter(Empty), "tasks are listed")


def test_a_split_that_raises():
    class Missing(Sound):
        def tasks(self, split):
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


def test_items_of_another_name():
    found = finding(check_adapter(Sound, name="noise"), "items carry their environment's name")
    assert "lists 'train-0' as one of env 'sound'. TaskItem.env is the registered name, 'noise'." in found


@pytest.mark.parametrize(("items", "check", "words"), LISTED)
def test_items_that_break_the_contract(items, check, words):
    class Listing(Sound):
        def tasks(self, split):
            return items

    assert words in finding(check_adapter(Listing), check)


def test_an_id_that_means_two_items():
    class Vague(Sound):
        splits = ("train", "other")

        def tasks(self, split):
            return [TaskItem("vague", "0", {"word": split})]

    assert "reuses the id '0'" in finding(check_adapter(Vague), "ids are unique and splits apart")


def test_tasks_that_come_in_another_order():
    calls = itertools.count()

    class Unsorted(Sound):
        def tasks(self, split):
            items = super().tasks(split)
            return items[::-1] if next(calls) % 4 > 1 else items

    assert "other items the second time" in finding(check_adapter(Unsorted), "tasks are the same twice")


def test_options_that_the_constructor_refuses():
    found = finding(check_adapter(Sound, {"colour": "red"}), "tasks are listed")
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

    assert "beside other sessions" in finding(check_adapter(Racing), CROWDED)


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
            return [DemoAction("hello")]

    assert "earned 0.0 of 1.0" in finding(check_adapter(Wrong), SOLVED)


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
    assert (report.findings, report.notes[0]) == ([], "6 of 6 items have no oracle to be solved with.")
    assert report.notes[1].startswith("not tried in other processes, where a training plays: Can't pickle local object")


def test_rewards_after_the_end():
    class Generous(Sound):
        async def step(self, action):
            won = action == self.word
            return StepResult("Yes." if won else "No.", float(won), won)

    found = finding(check_adapter(Generous), SOLVED)
    assert "step('train 0') after the end of 'train-0' earned 1.0" in found


def test_the_report_is_readable():
    class Empty(Sound):
        splits = ()

    text = "FAIL  tasks are listed: splits is empty. Name at least one split."
    assert str(check_adapter(Empty)) == text
    assert str(check_adapter(Sound)).startswith("ok    tasks are listed\nok    items carry their environment's name\n")


# What else a host does


@pytest.mark.parametrize("call", ["reset", "step", "close"])
def test_a_plain_function_should_be_a_coroutine(call):
    class Plain(Sound):
        pass

    setattr(Plain, call, lambda self, *arguments: None)
    (found, *_) = check_adapter(Plain).findings
    assert "returned None, which cannot be awaited. Make it a coroutine: `async def " + call in str(found)


def test_a_message_that_ends_with_a_full_stop_gets_no_second_one():
    class Broken(Sound):
        async def reset(self, item):
            raise ValueError("The world is flat.")

    found = finding(check_adapter(Broken), "sessions begin and close")
    assert found.endswith(
        "raised ValueError: The world is flat. A session must be able to begin every item that tasks() lists."
    )


class OneThread(Sound):
    """Bears only the thread and the event loop in which it was first played, and says so."""

    hosting = Hosting(threads=1, sessions=8)
    home: ClassVar[set[tuple[int, asyncio.AbstractEventLoop]]] = set()

    async def reset(self, item: TaskItem) -> list[Message]:
        self.home.add((threading.get_ident(), asyncio.get_running_loop()))
        if len(self.home) > 1:
            raise RuntimeError("called from a second thread")
        return await super().reset(item)


def test_sessions_that_share_a_thread_are_played_in_one():
    OneThread.home.clear()
    assert not check_adapter(OneThread).findings


def test_a_call_that_blocks_the_shared_thread():
    class Blocking(OneThread):
        async def reset(self, item):
            time.sleep(1.0)
            return await Sound.reset(self, item)

    assert "a call took over 0.1 s" in finding(check_adapter(Blocking, timeout_s=0.1), "sessions begin and close")


def test_sessions_that_leave_files_open(tmp_path):
    class Leaky(Sound):
        left: ClassVar[list[TextIO]] = []

        async def reset(self, item):
            self.left.append((tmp_path / "log").open("w"))
            return await super().reset(item)

    found = finding(check_adapter(Leaky), "sessions leave nothing behind")
    assert re.search(r"12 sessions left \d+ files open\. Release in close\(\) what reset\(\) took\.", found)
    for file in Leaky.left:
        file.close()


def test_sessions_that_leave_threads_running():
    over = threading.Event()

    class Busy(Sound):
        async def reset(self, item):
            threading.Thread(target=over.wait, daemon=True).start()
            return await super().reset(item)

    found = finding(check_adapter(Busy), "sessions leave nothing behind")
    over.set()
    assert re.search(r"12 sessions left \d+ threads open", found)


class Heavy(Sound):
    """Takes 10 MiB a session, and hosts that shall hold no more than 200."""

    hosting = Hosting(sessions=64, memory_mb=200)

    async def reset(self, item: TaskItem) -> list[Message]:
        self.ballast = b"x" * (10 << 20)
        return await super().reset(item)


def test_sessions_that_a_host_has_no_memory_for():
    found = finding(check_adapter(Heavy), "a full host fits into its memory")
    assert re.search(r"64 sessions would take about 6\d\d MiB in a host, more than hosting.memory_mb=200", found)
    assert re.search(r"`hosting = Hosting\(sessions=1\d\)`\.$", found)


class Unsorted(Sound):
    """Lists its tasks as they come out of a set, which every process has in another order."""

    def tasks(self, split: str) -> Sequence[TaskItem]:
        return [TaskItem("sound", f"{split}-{word}", {"word": word}) for word in set("abcdefghijklmnop")]


def test_tasks_that_are_others_in_another_process():
    found = finding(check_adapter(Unsorted), "tasks are the same in another process")
    assert "tasks() listed other items in another process. Sort what comes out of a set" in found


class Local(Sound):
    """Says what only this process knows."""

    started = time.monotonic_ns()

    async def reset(self, item: TaskItem) -> list[Message]:
        await super().reset(item)
        return [{"role": "user", "content": f"Say {self.word} before {self.started}."}]


def test_texts_that_are_others_in_a_host_process():
    found = finding(check_adapter(Local), "a host process plays the same")
    assert "in a host process. Sort what comes out of a set" in found


def test_a_slow_environment_is_checked_in_bounded_time():
    class Slow(Sound):
        async def reset(self, item):
            time.sleep(0.1)
            return await super().reset(item)

    report = check_adapter(Slow, budget_s=0.05)
    assert not report.findings
    assert "sessions begin and close: 5 more were left out after 0.05 s." in report.notes


def test_fuzzed_actions_are_the_same_for_a_seed_and_mostly_different():
    made = fuzz(["get 1 oak log"])
    assert made == fuzz(["get 1 oak log"]) != fuzz(["get 1 oak log"], seed=1)
    assert len(set(made)) > 150
    assert max(map(len, made)) > MAX_MESSAGE
