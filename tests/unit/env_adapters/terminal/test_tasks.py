"""The generated tasks, their solutions and hidden tests, and the adapter's answers and refusals."""

import os
import stat
from collections.abc import Sequence
from pathlib import Path

import pytest

from env_adapters.terminal.adapter import Terminal
from env_adapters.terminal.grading import equal, same_content
from env_adapters.terminal.runtimes import PYTHON, bubblewrap_problem, make_runtime
from env_adapters.terminal.seccomp import CALLS, seccomp_filter
from env_adapters.terminal.tasks import COUNTS, KINDS, generate, names
from tests.support.sandboxes import need, play
from verl_agent.errors import ConfigError

ONE_OF_EACH = [f"{kind}-{size}-{number:02}" for kind in KINDS for size in COUNTS for number in (0, 1, 2)]


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


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_a_solution_passes_and_the_files_as_they_were_do_not(name):
    need()
    assert play(Terminal(), item(name), solution(name))[-1].reward == 1.0
    assert play(Terminal(), item(name), ["submit"])[-1].reward == 0.0


@pytest.mark.slow
@pytest.mark.parametrize("name", names())
def test_all_solutions_pass_and_no_task_is_solved_at_the_beginning(name):
    test_a_solution_passes_and_the_files_as_they_were_do_not(name)


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
        (b'a,"b"\r\n', [["a", "b"]], "csv", True),
        (b'"a', [["a", "b"]], "csv", False),
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
        ({"runtime": "dokcer"}, r"env\.options\.runtime='dokcer' is not allowed\. Did you mean 'docker'"),
        ({"limits": {"memory": 5}}, r"env\.options\.limits\.memory is not a limit\. Did you mean 'memory_mb'"),
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


def test_the_filter_is_one_for_each_known_architecture():
    for machine in ("x86_64", "aarch64"):
        program = seccomp_filter(machine)
        assert len(program) == 8 * (9 + len(CALLS))
    assert seccomp_filter("riscv64") == b""
