"""The contract of sandboxes, the same for each runtime: the shell, its limits, files, and programs of tests."""

import os
from collections.abc import Iterator

import pytest

from env_adapters.terminal.runtimes import RUNTIMES, Limits, SandboxLayout, make_runtime
from env_adapters.terminal.sandbox import Sandbox, SandboxEndedError
from tests.support.sandboxes import IMAGE, need

LIMITS = Limits(cpu_s=20, memory_mb=128, disk_mb=4, files=500, processes=16, output_chars=400)


@pytest.fixture(params=RUNTIMES)
def sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    need(request.param)
    one = Sandbox(make_runtime(request.param, IMAGE), LIMITS, SandboxLayout())
    yield one
    one.end()


def said(sandbox: Sandbox, command: str, seconds: float = 5.0) -> str:
    return sandbox.run(command, seconds).text


def test_folder_variables_and_functions_persist(sandbox):
    said(sandbox, "mkdir d; cd d; X='a b'; f() { echo f:$X; }")
    assert said(sandbox, "pwd; f") == "/work/d\nf:a b\n"


def test_the_status_of_a_command_is_known(sandbox):
    assert sandbox.run("(exit 7)", 5).status == 7
    assert sandbox.run("if then", 5).status == 2
    assert sandbox.run("no_such_program", 5).status == 127


def test_a_command_of_several_lines_with_quotes_runs_as_written(sandbox):
    said(sandbox, "cat > t.py <<'END'\nprint('it\\'s', \"two\")\nEND")
    assert said(sandbox, "python3 t.py # ' \"") == "it's two\n"


def test_commands_do_not_read_what_is_sent_to_the_shell(sandbox):
    assert said(sandbox, "cat; read X; echo $?") == "1\n"


def test_long_output_loses_its_middle_and_says_how_much(sandbox):
    text = said(sandbox, "seq 1 100000")
    assert text.startswith("1\n2\n") and text.endswith("\n100000\n")
    assert "[588495 characters left out]" in text and len(text) < 500


def test_binary_output_is_harmless(sandbox):
    text = said(sandbox, "printf 'a\\000\\033[2J\\377b'; head -c 100000 /dev/urandom")
    assert text.startswith("a\ufffd\ufffd[2J\ufffdb") and all(one in "\t\n" or one.isprintable() for one in text)


@pytest.mark.parametrize("command", ["sleep 1000", "while :; do :; done", "cat /dev/zero", "kill -STOP $$"])
def test_a_command_that_hangs_is_ended_and_the_shell_goes_on(sandbox, command):
    said(sandbox, "cd /tmp; X=5")
    outcome = sandbox.run(command, 0.5)
    assert (outcome.status, outcome.reason) == (None, "seconds")
    assert said(sandbox, "pwd; echo $X") == ("/tmp\n5\n" if outcome.kept else "/work\n\n")
    assert outcome.kept is not command.startswith("kill")


@pytest.mark.parametrize("command", ["exit 3", "kill -9 $$", "exec true", "set -e; false"])
def test_a_shell_that_ends_is_followed_by_another_one(sandbox, command):
    said(sandbox, "echo kept > file")
    outcome = sandbox.run(command, 5)
    assert outcome.reason == "exit" and not outcome.kept
    assert said(sandbox, "cat file") == "kept\n"


def test_programs_in_the_background_end_with_their_command(sandbox):
    said(sandbox, "sleep 777 & (setsid nohup sleep 778 >/dev/null 2>&1 &); disown -a")
    assert said(sandbox, "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c 'slee[p] 77'") == "0\n"


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("python3 -c 'x = [bytes(10**6) * 1 for _ in range(10**4)]; input()'", "memory"),
        (
            "for i in 1 2 3 4 5 6; do python3 -c 'x = b\"1\" * 40_000_000; import time; time.sleep(9)' & done; wait",
            "memory",
        ),
        ("for i in $(seq 12); do (while :; do :; done) & done; wait", "cpu"),
        ("mkdir n; cd n; for i in $(seq 9000); do : > $i; done", "files"),
    ],
)
def test_limits_end_a_command(runtime, command, reason):
    need(runtime)
    limits = Limits(cpu_s=2, memory_mb=128, disk_mb=4, files=500, processes=16)
    sandbox = Sandbox(make_runtime(runtime, IMAGE), limits, SandboxLayout())
    try:
        outcome = sandbox.run(command, 20)
        assert outcome.reason == reason or (reason == "memory" and "MemoryError" in outcome.text)
    finally:
        sandbox.end()


def test_files_come_and_go_as_bytes(sandbox):
    content = bytes(range(256))
    sandbox.put({"a/b.bin": (0o644, content), "run.sh": (0o755, b"echo hi\n")})
    assert said(sandbox, "./run.sh; stat -c %s a/b.bin") == "hi\n256\n"
    files = sandbox.take("/work")
    assert files == {"a/b.bin": (0o644, content), "run.sh": (0o755, b"echo hi\n")}


def test_links_pipes_and_devices_are_not_taken(sandbox):
    said(sandbox, "echo x > file; ln -s /etc/passwd link; ln -s / folder; mkfifo pipe; ln file hard; ln -s . loop")
    assert set(sandbox.take("/work") or ()) == {"file", "hard"}


@pytest.mark.parametrize(
    "command",
    [
        "for i in $(seq 40); do truncate -s 4M $i; done",  # 160 MB that take no place
        "d=d; for i in $(seq 200); do mkdir -p $d; cd $d; done; touch deep",
    ],
)
def test_what_is_taken_is_limited(sandbox, command):
    said(sandbox, command, 10)
    assert not sandbox.take("/work")


def test_a_program_reads_its_input_and_its_output_is_limited(sandbox):
    assert (
        sandbox.execute(("python3", "-c", "import sys; print(len(sys.stdin.read()))"), b"x" * 300_000, 5, 100)
        == b"300000\n"
    )
    assert sandbox.execute(("/bin/cat", "/dev/zero"), b"", 5, 1000) is None
    assert sandbox.execute(("/bin/sleep", "100"), b"", 0.3, 1000) is None


def test_a_sandbox_that_has_ended_is_named(sandbox):
    sandbox.end()
    with pytest.raises(SandboxEndedError):
        sandbox.run("true", 1)


def test_an_ended_sandbox_leaves_no_descriptor(sandbox):
    before = len(os.listdir("/proc/self/fd"))
    other = Sandbox(make_runtime("bubblewrap", IMAGE), LIMITS, SandboxLayout()) if need() is None else sandbox
    other.run("sleep 100 &", 5)
    other.end()
    assert len(os.listdir("/proc/self/fd")) == before
