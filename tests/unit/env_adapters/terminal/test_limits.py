"""Ways to exceed the limits of a sandbox unseen; each is refused or counted."""

import inspect
import os
import subprocess
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from env_adapters.terminal import usage
from env_adapters.terminal.adapter import Terminal
from env_adapters.terminal.control_group import END, ControlGroup, delegated
from env_adapters.terminal.grading import MAX_BYTES, FileCheck
from env_adapters.terminal.runtimes import Bubblewrap, Limits, SandboxLayout, limits_hold_by
from env_adapters.terminal.sandbox import CommandOutcome, Sandbox
from tests.support.sandboxes import need, play

LIMITS = Limits(cpu_s=2, memory_mb=128, disk_mb=4, files=2000, processes=24, output_chars=2000)


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    need()
    one = Sandbox(Bubblewrap(), LIMITS, SandboxLayout())
    yield one
    one.end()


def run(sandbox: Sandbox, program: str, seconds: float = 60.0) -> CommandOutcome:
    """Run a Python program."""
    assert sandbox.put({"program.py": (0o644, program.encode())})
    return sandbox.run("python3 program.py", seconds)


REFUSED = {
    "shared memory without a file": "mmap.mmap(-1, 1 << 20, mmap.MAP_SHARED | mmap.MAP_ANONYMOUS)",
    "shared memory of /dev/zero": "mmap.mmap(os.open('/dev/zero', os.O_RDWR), 1 << 20, mmap.MAP_SHARED)",
    "less reason to be ended": "open('/proc/self/oom_score_adj', 'w').write('0')",
    "pages in a pipe": "check(libc.vmsplice(os.pipe()[1], ctypes.byref(ctypes.create_string_buffer(64)), 0, 0))",
    "watches": "check(libc.inotify_init())",
    "sockets of other families": "socket.socket(38, socket.SOCK_SEQPACKET)",
    "other protocols": "socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)",
}


@pytest.mark.parametrize("way", REFUSED)
def test_memory_that_nothing_counts_is_refused(sandbox, way):
    outcome = run(
        sandbox,
        "import ctypes, mmap, os, socket\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        f"def check(result): assert result >= 0, 'not permitted'\n{REFUSED[way]}\nprint('DONE')",
    )
    assert "DONE" not in outcome.text
    assert any(word in outcome.text for word in ("not permitted", "Read-only", "ermission denied"))


def test_large_buffers_of_sockets_have_no_effect(sandbox):
    program = """
import socket
one = socket.socket()
before = one.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 21)
print(one.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) == before)
"""
    assert run(sandbox, program).text == "True\n"


COUNTED = {
    "a thread whose process seems to have ended": """
import ctypes, os, threading, time
def hold():
    time.sleep(0.2)
    memory = [b"1" * (10 << 20) for _ in range(19)]
    time.sleep(60)
threading.Thread(target=hold).start()
ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[os.uname().machine], 0)
""",
    "connections that nobody accepts": """
import socket
server = socket.socket(socket.AF_UNIX)
server.bind("/tmp/server")
server.listen(4096)
while True:
    client = socket.socket(socket.AF_UNIX)
    client.connect("/tmp/server")
    client.setblocking(False)
    try:
        while True: client.send(b"1" * 32768)
    except OSError: pass
    client.close()
""",
    "queues of connections": """
import os, socket, time
server = socket.create_server(("127.0.0.1", 0))
for _ in range(20):
    if os.fork(): continue
    kept = []
    for _ in range(25):
        client = socket.create_connection(server.getsockname())
        client.setblocking(False)
        kept.append(client)
        try:
            while True: client.send(b"1" * 65536)
        except OSError: pass
    time.sleep(60)
time.sleep(60)
""",
    "terminals": """
import os, time
for _ in range(22):
    if os.fork(): continue
    kept = [os.openpty() for _ in range(29)]
    time.sleep(60)
time.sleep(60)
""",
}


@pytest.mark.parametrize("way", COUNTED)
def test_memory_that_no_process_shows_is_counted(sandbox, way):
    assert run(sandbox, COUNTED[way]).reason == "memory"


BURN = """
import ctypes, os, signal, time
def burn(seconds):
    until = time.process_time() + seconds
    while time.process_time() < until: pass
    os.write(file, b"%d\\n" % (seconds * 1000))
    os._exit(0)
class Action(ctypes.Structure):
    _fields_ = [("call", ctypes.c_void_p), ("mask", ctypes.c_ubyte * 128), ("flags", ctypes.c_int)]
file = os.open("/work/burnt", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
seconds, at_once = SECONDS, 3
DISCARD
while True:
    for _ in range(at_once):
        if os.fork() == 0: burn(seconds)
    try:
        while True: os.wait()
    except ChildProcessError: pass
"""
IGNORED = "signal.signal(signal.SIGCHLD, signal.SIG_IGN)"
NOT_COLLECTED = """
handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(lambda number: None)
action = Action(ctypes.cast(handler, ctypes.c_void_p).value, flags=2)  # SA_NOCLDWAIT
assert ctypes.CDLL(None).sigaction(17, ctypes.byref(action), None) == 0
"""


@pytest.mark.parametrize(
    ("discard", "seconds"),
    [(IGNORED, 0.2), (NOT_COLLECTED, 0.2), (NOT_COLLECTED, 0.004), ("", 0.2)],
    ids=["ignored", "not collected", "not collected and short", "collected"],
)
def test_cpu_time_of_children_counts_whoever_collects_them(sandbox, seconds, discard):
    """`burnt` has the seconds that children used, by their own clock."""
    outcome = run(sandbox, BURN.replace("SECONDS", str(seconds)).replace("DISCARD", discard))
    assert outcome.reason == "cpu"
    left = sandbox.take("/work") or {}
    assert sum(map(int, left["burnt"][1].split())) / 1000 < 2 * LIMITS.cpu_s


def test_cpu_time_of_children_that_are_collected_does_not_seem_lost():
    """The counting runs as a program of a sandbox, on honest children of several depths."""
    need()
    program = f"""
import os, subprocess, time
exec({inspect.getsource(usage)!r})
counts = Usage(["/tmp"], 1 << 30)
busy = "for i in $(seq 30); do python3 -S -c 'sum(range(200000))'; (echo | cat | cat); done"
children = [subprocess.Popen(["/bin/bash", "-c", f"{{busy}}; ({{busy}}) & {{busy}}; wait"]) for _ in range(2)]
while any(child.poll() is None for child in children):
    counts.look(time.monotonic())
    time.sleep(0.01)
counts.look(time.monotonic())
print(counts.hides, counts.lost_s)
"""
    sandbox = Sandbox(Bubblewrap(), Limits(processes=32), SandboxLayout())
    try:
        assert run(sandbox, program).text.endswith("\nFalse 0.0\n")
    finally:
        sandbox.end()


def test_nothing_runs_between_two_commands(sandbox):
    sandbox.run("PROMPT_COMMAND='while [ -e /tmp/go ]; do echo >> /tmp/count; done'", 5)
    sandbox.run("trap 'touch /tmp/go' EXIT; touch /tmp/go", 0.5)
    first = sandbox.run("unset PROMPT_COMMAND; rm -f /tmp/go; wc -l < /tmp/count", 5).text
    assert sandbox.run("wc -l < /tmp/count", 5).text in (first, "")
    pid = sandbox.run("echo $BASHPID", 5).text
    state = sandbox.execute(("/bin/sh", "-c", "ls /proc | grep -c '^[0-9]'"), b"", 5, 100)
    assert pid.strip().isdigit() and state is not None


def test_devices_of_zeros_and_standard_streams_still_work(sandbox):
    text = sandbox.run("head -c 100000 /dev/zero | wc -c; echo out > /dev/stdout; echo x > /dev/null; nice", 5).text
    assert text == "100000\nout\n10\n"


@pytest.mark.parametrize("data", [b"," * (15 << 20), b"\n" * (15 << 20), b"[" * (15 << 20), b"[{}," * (3 << 20)])
@pytest.mark.parametrize("kind", ["text", "csv", "json"])
def test_a_large_file_is_not_read_outside_a_sandbox(kind, data):
    def refuse(argv, stdin):
        raise AssertionError("a file of this size needs no program")

    tracemalloc.start()
    try:
        assert not FileCheck("file", [["a", "b"]], kind).passes({"file": (0o644, data)}, refuse)
        assert tracemalloc.get_traced_memory()[1] < MAX_BYTES
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("kind", "expected", "right", "wrong"),
    [
        ("csv", [["a", "b"]], ('a,"b"\r\n', "a,b", "\na,b\n\n"), ('"a', "a;b", "a,b\nc,d", "\ufeffa,b", "")),
        ("json", {"a": [1, 0.3]}, ('{"a": [1, 0.30000000000000004]}', '{"a":\n [1,\n 3e-1]}'), ('{"a": [1.0, 0.3]}',)),
        ("json", 1, ("1", " 1 "), ("true", "1.0", "NaN", "1e999", "[" * 900, "9" * 900, "", "{")),
    ],
)
def test_files_are_compared_by_value(sandbox, kind, expected, right, wrong):
    for text in (*right, *wrong):
        files = {"file": (0o644, text.encode())}
        assert sandbox.put(files)
        passed = FileCheck("file", expected, kind).passes(
            files, lambda argv, stdin: sandbox.execute(argv, stdin, 9, 9999)
        )
        assert passed is (text in right), text


def test_a_full_disk_costs_little_outside():
    """`take` and the grading hold the files as bytes, and nothing that is parsed."""
    need()
    env = Terminal()
    item = next(one for one in env.tasks("train") if one.id.startswith("data-small"))
    name = env.demonstration(item)[0].action.split()[-1]
    tracemalloc.start()
    try:
        step = play(env, item, [f"head -c 15000000 /dev/zero | tr '\\0' , > {name}", "submit"])[-1]
        assert step.reward == 0.0 and tracemalloc.get_traced_memory()[1] < 150 << 20
    finally:
        tracemalloc.stop()


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


@pytest.mark.parametrize(
    ("enabled", "found"),
    [({"": "cpu memory pids", "a": "memory pids"}, "a"), ({"": "memory pids", "a": "pids"}, ""), ({"": "cpu"}, None)],
)
def test_the_nearest_control_group_with_both_controllers_is_taken(tmp_path, enabled, found):
    write(tmp_path, {"cgroup.controllers": "cpu memory pids"})
    for name in ("", "a", "a/own.scope"):
        write(tmp_path / name, {"cgroup.subtree_control": enabled.get(name, ""), "cgroup.procs": ""})
    expected = None if found is None else tmp_path / found
    assert delegated(tmp_path, "/a/own.scope") == expected


def test_a_machine_without_version_2_of_control_groups_has_no_group(tmp_path):
    assert delegated(tmp_path, "/") is None


def test_doctor_names_what_makes_the_limits_hold():
    assert limits_hold_by().startswith("limits by cgroup v2" if delegated() else "limits by seccomp and rlimits")


def test_a_control_group_limits_memory_and_processes_and_is_removed():
    parent = delegated()
    if parent is None:
        pytest.skip("no control group of version 2 is delegated to this process")
    group = ControlGroup.make(parent, 64, 4)
    try:
        assert (group.folder / "memory.max").read_text() == f"{128 << 20}\n"
        assert (group.folder / "pids.max").read_text() == "12\n"
    finally:
        os.close(group.entrance)
        subprocess.run([*END, str(group.folder)], check=True)
    assert not group.folder.exists()
