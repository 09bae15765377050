"""Test that `check_adapter` reports each kind of violation with the call, the result and the advice."""

import asyncio
import itertools
import json
import random
import re
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, TextIO

import pytest

from verl_agent.envs.action_format import ActionFormat, FenceFormat, LineFormat
from verl_agent.envs.base import EnvAdapter, Hosting
from verl_agent.envs.testing.check import ACTIONS_KEPT, Report, check_adapter
from verl_agent.envs.testing.contract import BAD_ACTIONS, CONCURRENT, LUCK, SOLVED, fuzz
from verl_agent.envs.testing.violation import MAX_MESSAGE
from verl_agent.types import DemoAction, Message, StepResult, TaskItem

UNIQUE = "ids are unique and splits apart"


class Valid(EnvAdapter):
    """Environment that keeps the contract. Its task is to say the word of the item."""

    action_format: ActionFormat = FenceFormat()

    def tasks(self, split: str) -> Sequence[TaskItem]:
        return [TaskItem("valid", f"{split}-{n}", {"word": f"{split} {n}"}) for n in range(3)]

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


def violation(report: Report, check: str) -> str:
    """Return the violation that a check reported, as text."""
    violations = {violation.check: str(violation) for violation in report.violations}
    assert check in violations, str(report)
    return violations[check]


def test_a_valid_adapter_passes_every_check():
    lines: list[str] = []
    report = check_adapter(Valid, name="valid", on_line=lines.append)
    assert (report.violations, report.notes, len(report.passed)) == ([], [], 17)
    assert lines == str(report).splitlines()
    assert lines[:2] == ["ok    tasks are listed", "ok    items carry their environment's name"]
    assert re.search(
        r"^ok    a full host fits .*: \d+ MiB, and about [\d.]+ for each of at most 64 sessions$", lines[-1]
    )


def item_of(split: str) -> TaskItem:
    return TaskItem("valid", "0", {"word": split})


@pytest.mark.parametrize(
    ("items", "check", "words"),
    [
        ({"train": [item_of("train")], "extra": []}, "tasks are listed", "tasks('extra') returned no items"),
        ({"train": None}, "tasks are listed", "tasks('train') raised TypeError"),
        ({split: [item_of(split)] for split in ("train", "other")}, UNIQUE, "reuses the id '0'"),
    ],
)
def test_invalid_splits_are_a_violation(items, check, words):
    class Splitting(Valid):
        splits = tuple(items)

        def tasks(self, split):
            return [*items[split]]

    assert words in violation(check_adapter(Splitting), check)


LISTED = [
    (["first"], "tasks are listed", "listed 'first'"),
    ([TaskItem("t", "1"), TaskItem("t", "1")], UNIQUE, "tasks('train') listed 1 ids twice"),
    ([TaskItem("t", "1")], UNIQUE, "shares 1 ids with 'test', such as '1'"),
]


def test_items_of_another_environment_are_a_violation():
    found = violation(check_adapter(Valid, name="noise"), "items carry their environment's name")
    assert "lists 'train-0' as one of env 'valid'. TaskItem.env is the registered name, 'noise'." in found


@pytest.mark.parametrize(("items", "check", "words"), LISTED)
def test_invalid_items_are_a_violation(items, check, words):
    class Listing(Valid):
        def tasks(self, split):
            return items

    assert words in violation(check_adapter(Listing), check)


def test_data_that_json_does_not_keep_is_a_violation_with_its_key():
    class Unsorted(Valid):
        def tasks(self, split):
            return [TaskItem("valid", "0", {"words": [{1}]})]

    found = violation(check_adapter(Unsorted), "tasks are listed")
    assert "TaskItem '0' of env 'valid': data['words'][0] is {1} of type set" in found


def test_tasks_in_another_order_are_a_violation():
    calls = itertools.count()

    class Unsorted(Valid):
        def tasks(self, split):
            items = super().tasks(split)
            return items[::-1] if next(calls) % 4 > 1 else items

    assert "other items the second time" in violation(check_adapter(Unsorted), "tasks are the same twice")


def test_options_that_the_constructor_rejects_are_a_violation():
    found = violation(check_adapter(Valid, {"colour": "red"}), "tasks are listed")
    assert "Valid(**{'colour': 'red'}) raised TypeError" in found


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ([], "reset('train-0') returned []"),
        ("Say it.", "reset('train-0') returned 'Say it.'"),
        ([{"role": "user"}], "gave the message {'role': 'user'}"),
        ([{"role": "narrator", "content": "Once."}], "gave the role 'narrator'"),
        ([{"role": "assistant", "content": "OK."}], "ended with a message of 'assistant'"),
        ([{"role": "user", "content": ""}], "gave the text ''"),
        ([{"role": "user", "content": "x" * (MAX_MESSAGE + 1)}], "gave 20,001 characters"),
    ],
)
def test_invalid_prompts_are_a_violation(prompt, words):
    class Prompting(Valid):
        async def reset(self, item):
            return prompt

    assert words in violation(check_adapter(Prompting), "sessions begin and close")


def test_close_that_fails_before_reset_is_a_violation():
    class Careless(Valid):
        async def close(self):
            del self.word

    assert "close() raised AttributeError" in violation(check_adapter(Careless), "sessions begin and close")


def test_a_reset_over_the_time_limit_is_a_violation():
    class Stuck(Valid):
        async def reset(self, item):
            time.sleep(1.0)
            return await super().reset(item)

    assert "took over 0.1 s" in violation(check_adapter(Stuck, timeout_s=0.1), "sessions begin and close")


def test_a_bad_action_that_raises_is_a_violation():
    class Brittle(Valid):
        async def step(self, action):
            action.split()[0]
            return await super().step(action)

    assert "step('') raised IndexError" in violation(check_adapter(Brittle), "bad actions are answered")


def test_an_observation_that_grows_with_the_action_is_a_violation():
    class Echo(Valid):
        async def step(self, action):
            answer = await super().step(action)
            return StepResult(f"{answer.observation} You said: {action}", answer.reward, answer.terminated)

    assert max(map(len, BAD_ACTIONS)) > MAX_MESSAGE
    assert "Allowed: at most 1,000,000" in violation(check_adapter(Echo), "bad actions are answered")


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (StepResult(""), "gave the text ''"),
        (StepResult("Yes.", 1.0), "earned 1.0. Reward only actions that solve the task."),
    ],
)
def test_invalid_step_results_are_a_violation(answer, words):
    class Answering(Valid):
        async def step(self, action):
            return answer

    assert words in violation(check_adapter(Answering), "bad actions are answered")


def test_texts_that_differ_between_replays_are_a_violation_unless_only_rewards_are_compared():
    numbers = itertools.count()

    class Random(Valid):
        async def step(self, action):
            answer = await super().step(action)
            return StepResult(f"{answer.observation} {next(numbers)}", answer.reward, answer.terminated)

    assert "when played again" in violation(check_adapter(Random), "episodes replay")
    assert not check_adapter(Random, replay_exact=False).violations
    Random.deterministic = False
    report = check_adapter(Random)
    assert not report.violations
    assert any("only rewards: `deterministic` is False" in note for note in report.notes)


def test_sessions_that_share_their_state_are_a_violation():
    class Shared(Valid):
        state: ClassVar[dict[str, str]] = {}

        async def reset(self, item):
            self.state["word"] = item.data["word"]
            return await super().reset(item)

        async def step(self, action):
            self.word = self.state["word"]
            return await super().step(action)

    assert "beside another session" in violation(check_adapter(Shared), "sessions do not mix")


def test_a_container_of_the_class_that_changes_is_named():
    class Till(Valid):
        paid: ClassVar[dict[str, int]] = {}

        async def step(self, action):
            self.paid["coins"] = self.paid.get("coins", 0) + 1
            answer = await super().step(action)
            return replace(answer, observation=f"{answer.observation} {self.paid['coins']}")

    assert "`Till.paid` belongs to the class" in violation(check_adapter(Till), "episodes replay")


def test_sessions_that_disturb_each_other_in_threads_are_a_violation():
    playing: set[object] = set()

    class Racing(Valid):
        async def step(self, action):
            playing.add(self)
            time.sleep(0.01)
            crowd = len(playing)
            playing.discard(self)
            answer = await super().step(action)
            return StepResult(f"{answer.observation} {crowd}", answer.reward, answer.terminated)

    assert "beside other sessions" in violation(check_adapter(Racing), CONCURRENT)


def test_an_event_loop_kept_for_other_threads_is_a_violation():
    class OneLoop(Valid):
        loops: ClassVar[list[asyncio.AbstractEventLoop]] = []

        async def reset(self, item):
            self.loops.append(asyncio.get_running_loop())
            if self.loops[0] is not self.loops[-1]:
                raise RuntimeError("attached to a different loop")
            return await super().reset(item)

    assert "different loop" in violation(check_adapter(OneLoop), "sessions begin and close")


@pytest.mark.parametrize(
    ("actions", "check", "words"),
    [
        ([DemoAction("hello")], SOLVED, "earned 0.0 of 1.0"),
        ([], "demonstrations are lists of actions", "returned no actions"),
        (
            ["hello"],
            "demonstrations are lists of actions",
            "returned 'hello' of type str. Return each action in a Demo",
        ),
    ],
)
def test_invalid_demonstrations_are_a_violation(actions, check, words):
    class Showing(Valid):
        def demonstration(self, item):
            return actions

    assert words in violation(check_adapter(Showing), check)


@pytest.mark.parametrize("turns", [0, 99, "1"])
def test_oracle_turns_beyond_the_demonstration_are_a_violation(turns):
    class Slow(Valid):
        def oracle_turns(self, item):
            return turns

    found = violation(check_adapter(Slow), "demonstrations are lists of actions")
    assert "oracle_turns('train-0')" in found


def test_items_without_demonstration_are_noted():
    class Hard(Valid):
        def demonstration(self, item):
            raise NotImplementedError

    report = check_adapter(Hard)
    assert (report.violations, report.notes[0]) == ([], "6 of 6 items have no demonstration.")
    assert report.notes[1].startswith("not checked in other processes, where training plays: Can't pickle local object")


class Unguided(Valid):
    """Environment without an oracle, whose prompt names the word."""

    def demonstration(self, item):
        raise NotImplementedError


def test_a_wrong_value_that_only_a_success_returns_is_found_without_a_demonstration():
    class WrongAtSuccess(Unguided):
        async def step(self, action):
            result = await super().step(action)
            return replace(result, reward=float("nan")) if result.reward else result

    found = violation(check_adapter(WrongAtSuccess), "other episodes keep the contract")
    assert "gave reward=nan" in found


def test_a_wrong_value_that_only_a_success_of_an_oracle_returns_is_found():
    class Secret(Unguided):
        async def reset(self, item):
            await super().reset(item)
            return [{"role": "user", "content": "Guess."}]

        async def step(self, action):
            result = await super().step(action)
            return replace(result, terminated="yes") if result.reward else result

        def oracle(self, item):
            return lambda observation: DemoAction(item.data["word"])

    assert "gave terminated='yes'" in violation(check_adapter(Secret), "other episodes keep the contract")


def test_a_check_without_a_success_says_so():
    class Secret(Unguided):
        async def reset(self, item):
            await super().reset(item)
            return [{"role": "user", "content": "Guess."}]

    report = check_adapter(Secret, budget_s=0.5)
    assert any(note.startswith("no success was reached") for note in report.notes), str(report)
    assert not any(note.startswith("no success") for note in check_adapter(Unguided).notes)


@pytest.mark.parametrize("value", [float("nan"), "1", None])
def test_a_success_return_that_is_no_number_is_a_violation(value):
    class Unclear(Valid):
        success_reward = value

    assert f"Unclear.success_reward={value!r} is not allowed" in violation(check_adapter(Unclear), "tasks are listed")


def test_rewards_after_the_end_are_a_violation():
    class Generous(Valid):
        async def step(self, action):
            won = action == self.word
            return StepResult("Yes." if won else "No.", float(won), won)

    found = violation(check_adapter(Generous), SOLVED)
    assert "step('train 0') after the end of 'train-0' earned 1.0" in found


def test_the_report_has_one_line_for_each_check():
    class Empty(Valid):
        splits = ()

    text = "FAIL  tasks are listed: splits is empty. Name at least one split."
    assert str(check_adapter(Empty)) == text


@pytest.mark.parametrize("call", ["reset", "step", "close"])
def test_a_method_that_is_not_a_coroutine_is_a_violation(call):
    class Plain(Valid):
        pass

    method = lambda self, *arguments: None  # noqa: E731
    setattr(Plain, call, method)
    line = method.__code__.co_firstlineno
    (found, *_) = check_adapter(Plain).violations
    assert "returned None, which cannot be awaited (" in str(found)
    assert f"test_check_adapter.py:{line}). Make it a coroutine: `async def {call}" in str(found)


class Broken(Valid):
    """Environment that fails in a helper function."""

    async def step(self, action: str) -> StepResult:
        return fail()


def fail() -> StepResult:
    raise ValueError("The world is flat.")


def test_an_exception_is_reported_with_its_position():
    line = fail.__code__.co_firstlineno + 1
    assert violation(check_adapter(Broken), "bad actions are answered").startswith(
        f"bad actions are answered: step('') raised ValueError: The world is flat. ({__file__}:{line}). Answer an"
    )


def test_an_exception_inside_a_library_is_reported_with_the_line_of_the_adapter():
    class Parsing(Valid):
        async def step(self, action):
            json.loads("{")

    line = Parsing.step.__code__.co_firstlineno + 1
    assert f"({__file__}:{line})" in violation(check_adapter(Parsing), "bad actions are answered")


def test_violations_with_the_same_cause_are_reported_once():
    lines: list[str] = []
    (found,) = check_adapter(Broken, on_line=lines.append).violations
    assert found.also == ["episodes replay", SOLVED, "sessions leave nothing behind"]
    assert "FAIL  episodes replay: same cause as in 'bad actions are answered'." in lines
    assert sum("flat" in line for line in lines) == 1


# Action formats


def test_an_action_format_of_single_lines_is_noted():
    class Lines(Valid):
        action_format = LineFormat()

    report = check_adapter(Lines)
    assert not report.violations
    assert report.notes[0].startswith("LineFormat holds actions of one line: step() receives only the first line")


@dataclass(frozen=True)
class Unquoting(FenceFormat):
    """Format that removes quotes from actions."""

    def parse(self, reply: str) -> str | None:
        return (super().parse(reply) or "").strip("'\"")


def test_an_action_format_that_changes_actions_is_a_violation():
    class Quoted(Valid):
        action_format = Unquoting()

    assert "; it loses quotes, outer quotes. parse(format(action)) must" in violation(
        check_adapter(Quoted), ACTIONS_KEPT
    )


# Hosts


class OneThread(Valid):
    """Environment that works in one thread and one event loop only, and declares it."""

    hosting = Hosting(threads=1, sessions=8)
    home: ClassVar[set[tuple[int, asyncio.AbstractEventLoop]]] = set()

    async def reset(self, item: TaskItem) -> list[Message]:
        self.home.add((threading.get_ident(), asyncio.get_running_loop()))
        if len(self.home) > 1:
            raise RuntimeError("called from a second thread")
        return await super().reset(item)


def test_sessions_that_share_a_thread_run_in_one_thread():
    OneThread.home.clear()
    assert not check_adapter(OneThread).violations


def test_a_call_that_blocks_the_shared_thread_is_a_violation():
    class Blocking(OneThread):
        async def reset(self, item):
            time.sleep(1.0)
            return await Valid.reset(self, item)

    assert "a call took over 0.1 s" in violation(check_adapter(Blocking, timeout_s=0.1), "sessions begin and close")


def test_sessions_that_leave_files_open_are_a_violation(tmp_path):
    class Leaky(Valid):
        left: ClassVar[list[TextIO]] = []

        async def reset(self, item):
            self.left.append((tmp_path / "log").open("w"))
            return await super().reset(item)

    found = violation(check_adapter(Leaky), "sessions leave nothing behind")
    assert re.search(r"12 sessions left \d+ files open\. Release in close\(\) what reset\(\) took\.", found)
    for file in Leaky.left:
        file.close()


def test_sessions_that_leave_threads_running_are_a_violation():
    over = threading.Event()

    class Busy(Valid):
        async def reset(self, item):
            threading.Thread(target=over.wait, daemon=True).start()
            return await super().reset(item)

    found = violation(check_adapter(Busy), "sessions leave nothing behind")
    over.set()
    assert re.search(r"12 sessions left \d+ threads open", found)


class Heavy(Valid):
    """Environment with 10 MiB a session, and 200 MiB a host."""

    hosting = Hosting(sessions=64, memory_mb=200)

    async def reset(self, item: TaskItem) -> list[Message]:
        self.ballast = b"x" * (10 << 20)
        return await super().reset(item)


def test_sessions_that_exceed_the_memory_of_a_host_are_a_violation():
    found = violation(check_adapter(Heavy), "a full host fits into its memory")
    assert re.search(r"64 sessions would take about [67]\d\d MiB in a host, more than hosting.memory_mb=200", found)
    assert re.search(r"`hosting = Hosting\(sessions=1\d\)`\.$", found)


class Unsorted(Valid):
    """Environment that lists its tasks in the order of a set, which differs between processes."""

    def tasks(self, split: str) -> Sequence[TaskItem]:
        return [TaskItem("valid", f"{split}-{word}", {"word": word}) for word in set("abcdefghijklmnop")]


def test_tasks_that_differ_in_another_process_are_a_violation():
    found = violation(check_adapter(Unsorted), "tasks are the same in another process")
    assert "tasks() listed other items in another process. Sort the elements of sets" in found


class Local(Valid):
    """Environment whose prompt depends on the process."""

    started = time.monotonic_ns()

    async def reset(self, item: TaskItem) -> list[Message]:
        await super().reset(item)
        return [{"role": "user", "content": f"Say {self.word} before {self.started}."}]


def test_texts_that_differ_in_a_host_process_are_a_violation():
    found = violation(check_adapter(Local), "a host process plays the same")
    assert "in a host process. Sort the elements of sets" in found


def test_checks_of_a_slow_environment_skip_items_after_their_time_budget():
    class Slow(Valid):
        async def reset(self, item):
            time.sleep(0.1)
            return await super().reset(item)

    report = check_adapter(Slow, budget_s=0.05)
    assert not report.violations
    assert "sessions begin and close: 5 more were skipped after 0.05 s." in report.notes


def test_fuzzed_actions_depend_on_the_seed_and_differ():
    made = fuzz(["get 1 oak log"])
    assert made == fuzz(["get 1 oak log"]) != fuzz(["get 1 oak log"], seed=1)
    assert len(set(made)) > 150
    assert max(map(len, made)) > MAX_MESSAGE


class Lucky(Valid):
    """Environment that draws a third of its first texts by luck."""

    draws = random.Random(3)

    async def reset(self, item: TaskItem) -> list[Message]:
        (message,) = await super().reset(item)
        return [{**message, "content": message["content"] + " Hurry." * (self.draws.random() < 1 / 3)}]


def test_luck_that_changes_few_episodes_is_a_violation():
    """A single pair of episodes agrees with probability 5/9, and all pairs in less than 1 of 1,000 checks."""
    for _ in range(5):
        found = {one.check for one in check_adapter(Lucky).violations}
        assert found & {"episodes replay", "sessions do not mix", CONCURRENT, LUCK}


def test_the_report_states_the_power_of_the_test_of_luck():
    assert (
        f"{LUCK}: 24 pairs; luck that changes 25% of the episodes is missed in 1 of 1,000 checks"
        in check_adapter(Valid).passed
    )
