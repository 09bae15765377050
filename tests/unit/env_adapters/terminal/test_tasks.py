"""The generated tasks, their solutions and hidden tests, and the adapter's answers and refusals."""

import asyncio
import os
import re
import stat
import struct
from collections.abc import Sequence
from pathlib import Path

import pytest

from env_adapters.terminal.adapter import Terminal
from env_adapters.terminal.bubblewrap import PYTHON, bubblewrap_problem
from env_adapters.terminal.grading import TerminalTask, equal, same_content
from env_adapters.terminal.runtimes import Limits, SandboxLayout, make_runtime
from env_adapters.terminal.sandbox import Sandbox
from env_adapters.terminal.seccomp import ARCHITECTURES, CALLS, seccomp_filter
from env_adapters.terminal.tasks import COUNTS, KINDS, generate, names
from tests.support.sandboxes import need, play
from verl_agent.errors import ConfigError, EnvError
from verl_agent.types import reaches

ONE_OF_EACH = [f"{kind}-{size}-{number:02}" for kind in KINDS for size in COUNTS for number in (0, 1, 4)]


def item(name: str):
    return next(one for split in ("train", "test") for one in Terminal().tasks(split) if one.id == name)


def solution(name: str) -> Sequence[str]:
    return [one.action for one in Terminal().demonstration(item(name))]


def test_two_hundred_tasks_differ():
    assert len(names()) == 200
    assert len({(task.instruction, str(task.files)) for task in map(generate, names())}) == 200


def test_splits_are_apart_and_complete():
    env = Terminal()
    train, test = ({one.id for one in env.tasks(split)} for split in ("train", "test"))
    assert train.isdisjoint(test) and train | test == set(names()) and len(test) == 40
    assert {one.id for one in env.tasks("small_test")} == {name for name in test if "-small-" in name}


def test_held_out_tasks_have_functions_programs_and_words_of_their_own():
    """A text of a training solution solves none of them; `check-env terminal --attack` plays the most similar ones."""
    asked = {split: [generate(one.id).instruction for one in Terminal().tasks(split)] for split in ("train", "test")}
    for pattern in (r"`(\w+)` in", r" that (?:reads|takes|keeps) .*?[.]", r"the word (\w+)", r"sort the lines .*?[.]"):
        train, test = ({found for text in texts for found in re.findall(pattern, text)} for texts in asked.values())
        assert train and test and train.isdisjoint(test), pattern


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_a_solution_passes_and_the_files_as_they_were_do_not(name):
    need()
    assert play(Terminal(), item(name), solution(name))[-1].reward == 1.0
    assert play(Terminal(), item(name), ["submit"])[-1].reward == 0.0


@pytest.mark.slow
@pytest.mark.parametrize("name", names())
def test_all_solutions_pass_and_no_task_is_solved_at_the_beginning(name):
    test_a_solution_passes_and_the_files_as_they_were_do_not(name)


class Left:
    """A sandbox whose files are taken."""

    def take(self, folder):
        return {}


@pytest.mark.parametrize("reward", [1.0, 1.0 - 6e-8, 1.0 - 1e-6, 0.0])
def test_the_answer_to_submit_says_pass_exactly_if_the_reward_counts_as_a_success(reward):
    class Graded(TerminalTask):
        def grade(self, files, runtime, limits):
            return reward

    env = Terminal()
    env._current, env._folder = Graded("", {}, (), ()), "/work"
    passed = "pass" if reaches([reward], env.success_reward) else "do not pass"
    assert passed == ("pass" if reward > 0.9999999 else "do not pass")
    assert asyncio.run(env._submit(Left())).observation == f"The hidden tests {passed}."


def test_the_solution_of_another_task_earns_nothing():
    need()
    for number in range(1, 10):
        assert play(Terminal(), item("logs-small-00"), solution(f"logs-small-{number:02}"))[-1].reward == 0.0


@pytest.mark.parametrize(
    ("data", "expected", "kind", "result"),
    [
        (b" 12\n", 12, "text", True),
        (b"1", True, "json", False),
        (b"true", 1, "json", False),
        (b"0.30000000000000004", 0.3, "json", True),
        (b"NaN", 0.3, "json", False),
        (b"[1, 2]", [1], "json", False),
        (b"{}", {"a": 1}, "json", False),
        (b"[" * 100_000, [], "json", False),
        (b"1" * 400, 0.5, "json", False),
        (b"\xff", "x", "text", False),
        (b" " * 2000 + b"1", 1, "json", False),
    ],
)
def test_comparisons(data, expected, kind, result):
    assert same_content(data, expected, kind) is result


def test_what_is_compared_has_its_own_type():
    assert not equal({"__eq__": 1}, [1]) and not equal(None, False) and equal([1.0], [1]) is False


def test_commands_that_are_no_programs_are_counted_as_invalid():
    need()
    steps = play(Terminal(), None, ["no such action", "", "x" * 20_000, "true", "false"])
    assert [bool(step.info.get("invalid_action")) for step in steps] == [True, True, True, False, False]
    assert [step.observation for step in steps[3:]] == ["(no output)", "[exit status 1]"]


def test_an_episode_has_a_limit_of_seconds_and_of_cpu():
    need()
    steps = play(Terminal(limits={"episode_s": 1, "command_s": 5}), None, ["sleep 9", "submit"])
    assert steps[0].terminated and "after 1 seconds" in steps[0].observation and steps[1].reward == 0.0
    busy = play(Terminal(limits={"cpu_s": 1}), None, ["for i in 1 2 3; do (while :; do :; done) & done; wait"])
    assert busy[0].terminated and "more than 1 CPU seconds" in busy[0].observation


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"runtime": "dokcer"},
            r"runtime='dokcer' is not allowed\. Allowed: bubblewrap, docker, podman\. Did you mean 'docker'",
        ),
        ({"limits": {"memory": 5}}, r"env\.options\.limits\.memory is not a setting\. Did you mean 'memory_mb'"),
        ({"limits": {"memory_mb": 5}}, r"limits\.memory_mb=5 is not allowed\. Allowed: a whole number >= 32"),
        ({"limits": {"processes": 8.5}}, r"limits\.processes=8\.5 is not allowed"),
    ],
)
def test_options_that_are_not_allowed_are_named(options, message):
    with pytest.raises(ConfigError, match=message):
        Terminal(**options)


def fake_bwrap(folder: Path, script: str) -> str:
    """Write a program in bubblewrap's place."""
    file = folder / "bwrap"
    file.write_text(f"#!/bin/sh\n{script}\n")
    for path in (folder, *folder.parents[:3]):
        if path.stat().st_uid == os.getuid():
            path.chmod(path.stat().st_mode | stat.S_IXOTH | stat.S_IROTH)
    file.chmod(0o755)
    return str(file)


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo 'bwrap: No permissions to create new namespace' >&2; exit 1", ("may not make namespaces", "Allow them")),
        ("echo 'bwrap: Unknown option --disable-userns' >&2; exit 1", ("too old", "sudo apt-get install bubblewrap")),
        ("exit 0", ()),
    ],
)
def test_a_runtime_that_may_not_make_namespaces_is_named_with_the_remedy(tmp_path, script, words):
    said = bubblewrap_problem(fake_bwrap(tmp_path, script), PYTHON)
    assert all(word in said for word in words) and bool(said) is bool(words)


def test_a_missing_runtime_is_named_with_the_remedy():
    assert "sudo apt-get install bubblewrap" in bubblewrap_problem(None, PYTHON)
    assert "sudo apt-get install python3" in bubblewrap_problem("/bin/true", "/no/python3")
    runtime = make_runtime("podman", "")
    if "not installed" in runtime.problem():
        with pytest.raises(ConfigError, match=r"env\.options\.runtime='podman': the program podman is not installed"):
            play(Terminal(runtime="podman"), None, [])


def test_a_runtime_that_does_not_run_is_named(tmp_path):
    file = tmp_path / "docker"
    file.write_bytes(b"\0")
    file.chmod(0o755)
    assert "does not work" in make_runtime(str(file), "").problem()


def test_a_container_is_removed_with_its_sandbox(tmp_path):
    """Its processes are children of a daemon, which does not end them with the client."""
    file, calls = tmp_path / "docker", tmp_path / "calls"
    file.write_text(f'#!/bin/sh\necho "$@" >> {calls}\n')
    file.chmod(0o755)
    with pytest.raises(EnvError, match="does not start"):
        Sandbox(make_runtime(str(file), "image"), Limits(), SandboxLayout())
    started, ended = calls.read_text().splitlines()
    name = re.match(r"run --name (verl-agent-\w+) ", started)
    assert name and ended == f"rm --force {name[1]}"


def run_filter(program: bytes, machine: int, number: int, arguments: Sequence[int]) -> int:
    """Return the verdict of a filter, by the rules of the kernel for these instructions."""
    data = struct.pack("<iIQ6Q", number, machine, 0, *arguments)
    place, register = 0, 0
    while True:
        code, yes, no, value = struct.unpack_from("<HBBI", program, 8 * place)
        place += 1
        match code:
            case 0x20:
                register = struct.unpack_from("<I", data, value)[0]
            case 0x54:
                register &= value
            case 0x06:
                return value
            case 0x15 | 0x25 | 0x35:
                holds = {0x15: register == value, 0x25: register > value, 0x35: register >= value}[code]
                place += yes if holds else no
            case _:
                raise AssertionError(hex(code))


ALLOWED, REFUSED, IGNORED = 0x7FFF0000, 0x00050001, 0x00050000


@pytest.mark.parametrize(
    ("call", "arguments", "verdict"),
    [
        ((0, 63), (), ALLOWED),  # read
        ((62, 129), (1, 9), ALLOWED),  # kill
        ((9, 222), (0, 4096, 3, 0x22, 2**32 - 1, 0), ALLOWED),
        ((9, 222), (0, 4096, 3, 0x21, 2**32 - 1, 0), REFUSED),
        ((9, 222), (0, 4096, 3, 0x4000_0000_0000_0023, 2**32 - 1, 0), REFUSED),
        ((9, 222), (0, 4096, 3, 0x01, 5, 0), ALLOWED),
        *(((41, 198), (family, 1, 0), ALLOWED) for family in (1, 2, 10, 16)),
        *(((41, 198), (family, 1, 0), REFUSED) for family in (0, 3, 17, 38, 40)),
        ((41, 198), (2, 1, 6), ALLOWED),
        ((41, 198), (2, 1, 262), REFUSED),
        ((53, 199), (1, 1, 0), ALLOWED),
        ((53, 199), (30, 1, 0), REFUSED),
        ((54, 208), (3, 1, 7), IGNORED),
        ((54, 208), (3, 1, 8), IGNORED),
        ((54, 208), (3, 1, 2), ALLOWED),
        ((54, 208), (3, 6, 8), ALLOWED),
    ],
)
def test_the_filter_refuses_what_no_limit_counts(call, arguments, verdict):
    for machine, (number, column) in ARCHITECTURES.items():
        given = (*arguments, *(0,) * (6 - len(arguments)))
        assert run_filter(seccomp_filter(machine), number, call[column], given) == verdict


def test_the_filter_refuses_each_call_of_the_table_and_other_sets_of_calls():
    for machine, (number, column) in ARCHITECTURES.items():
        program = seccomp_filter(machine)
        for numbers in CALLS.values():
            assert run_filter(program, number, numbers[column], (0,) * 6) == REFUSED
        assert run_filter(program, number, 0x40000000, (0,) * 6) == REFUSED
        assert run_filter(program, 0x40000003, 0, (0,) * 6) == REFUSED
    assert seccomp_filter("riscv64") == b""
