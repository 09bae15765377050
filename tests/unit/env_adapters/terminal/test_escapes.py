"""Attempts to leave a sandbox, to harm the machine or to earn the reward without the work; none succeeds."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from env_adapters.terminal.adapter import Terminal
from env_adapters.terminal.runtimes import Bubblewrap, Limits, SandboxLayout
from env_adapters.terminal.sandbox import Sandbox
from tests.support.sandboxes import left, need, play

LIMITS = Limits(cpu_s=20, memory_mb=128, disk_mb=4, files=2000, processes=16)


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    need()
    one = Sandbox(Bubblewrap(), LIMITS, SandboxLayout())
    yield one
    one.end()


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A file of the host that everyone may read."""
    file = tmp_path / "secret.txt"
    file.write_text("hunter2-of-the-host")
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.getuid() and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o055)
    file.chmod(0o644)
    return file


def test_host_files(sandbox, secret):
    outcome = sandbox.run(
        f"cat {secret}; ls /root /home /var /srv /mnt /opt /boot /sys /run; cat /etc/shadow; cat /proc/1/root{secret}; "
        f"cat /proc/1/environ; ls /usr/local; find / -name secret.txt 2>/dev/null; ls -d /proc/*/root/root",
        10,
    )
    assert "hunter2" not in outcome.text and "secret.txt\n" not in outcome.text.replace(f"{secret}", "")
    assert "No such file" in outcome.text


def test_processes_of_others(sandbox):
    other = Sandbox(Bubblewrap(), LIMITS, SandboxLayout())
    with subprocess.Popen(["sleep", "4711"]) as mine:
        try:
            outcome = sandbox.run(
                f"cat /proc/[0-9]*/cmdline | tr '\\0' ' '; kill -9 {mine.pid}; ls /proc | grep -c '^[0-9]'", 5
            )
            assert "4711" not in outcome.text
            assert int(outcome.text.split()[-1]) <= 6
            assert mine.poll() is None
        finally:
            mine.kill()
            other.end()


def test_other_sessions(sandbox):
    other = Sandbox(Bubblewrap(), LIMITS, SandboxLayout())
    try:
        other.run("echo of-the-other > /work/theirs; echo of-the-other > /tmp/theirs; sleep 1", 5)
        assert "of-the-other" not in sandbox.run("ls -a /work /tmp; cat /work/theirs /tmp/theirs; ipcs -a", 5).text
    finally:
        other.end()


def test_network(sandbox):
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as abstract:
        abstract.bind("\0of-the-host")
        abstract.listen()
        port = server.getsockname()[1]
        program = f"""
import socket
for family, address in ((socket.AF_INET, ('127.0.0.1', {port})), (socket.AF_INET, ('1.1.1.1', 53)),
                        (socket.AF_UNIX, '\\0of-the-host'), (socket.AF_INET6, ('::1', {port}))):
    try:
        socket.socket(family).connect(address)
        print('CONNECTED', address)
    except OSError as error:
        print(error)
for family, kind in ((socket.AF_PACKET, socket.SOCK_RAW), (socket.AF_VSOCK, socket.SOCK_STREAM)):
    try:
        socket.socket(family, kind)
        print('CONNECTED', family)
    except OSError as error:
        print(error)
"""
        outcome = sandbox.run(
            f"python3 - <<'END'\n{program}\nEND\ncat /proc/net/dev | tail -n +3 | cut -d: -f1; cat /proc/net/unix", 5
        )
    assert "CONNECTED" not in outcome.text and "Network is unreachable" in outcome.text
    assert "of-the-host" not in outcome.text


@pytest.mark.parametrize(
    "bomb",
    [
        ":(){ :|:& };:",
        "python3 -c 'import os\nwhile True:\n try: os.fork()\n except OSError: pass'",
        "python3 -c 'import os\nwhile True:\n try:\n  if os.fork() == 0: os.setsid()\n except OSError: pass'",
        "f() { f & f & wait; }; f",
    ],
)
def test_forks_without_end(sandbox, bomb):
    others = set(psutil.Process().children(recursive=True))  # a browser of tests before
    sandbox.run(bomb, 1)
    assert len(set(psutil.Process().children(recursive=True)) - others) < 10
    assert sandbox.run("echo $((6 * 7))", 5).text.endswith("42\n")


@pytest.mark.parametrize(
    "place", ["/work/big", "/tmp/big", "/dev/shm/big", "/dev/big", "/big", "/usr/big", "/proc/big", "/etc/big"]
)
def test_a_full_disk(sandbox, place):
    sandbox.run(f"for i in 1 2 3 4 5 6 7 8; do head -c 50000000 /dev/zero >> {place}$i; done 2>/dev/null; sleep 0.1", 5)
    size = sandbox.run(f"du -sk {place}* 2>/dev/null | awk '{{s += $1}} END {{print s + 0}}'; rm -f {place}*", 5).text
    assert int(size.split()[0]) <= LIMITS.disk_mb * 1024


@pytest.mark.parametrize(
    "program",
    [
        "import ctypes; print('DONE', ctypes.CDLL(None).shmget(0, 1 << 30, 0o1600))",
        "import os; print('DONE', os.memfd_create('x'))",
        "import ctypes; print('DONE', ctypes.CDLL(None).semget(0, 32000, 0o1600))",
        "import mmap, time; x = mmap.mmap(-1, 1 << 27); x.write(b'1' * (1 << 27)); time.sleep(0.2); "
        "y = mmap.mmap(-1, 1 << 27); y.write(b'1' * (1 << 27)); time.sleep(3); print('DONE', 0)",
    ],
)
def test_memory_that_no_process_seems_to_hold(sandbox, program):
    outcome = sandbox.run(f'python3 -c "{program}"', 5)
    assert "DONE" not in outcome.text or "DONE -1" in outcome.text


def test_links_out_of_the_folder_are_not_followed(secret):
    """The host's file has the right answer, but the grader reads copies of regular files."""
    need()
    env = Terminal()
    item = next(one for one in env.tasks("train") if one.id.startswith("logs-small"))
    commands = env.demonstration(item)[0].action
    target = commands.rpartition("> ")[2]
    secret.write_bytes(env._task(item).checks[0].expected.encode())
    for link in (
        f"ln -s {secret} {target}",
        f"ln -s {secret.parent} d; ln -s d/{secret.name} {target}",
        f"mkfifo {target}",
    ):
        assert play(env, item, [link, "submit"])[-1].reward == 0.0
    assert (
        play(env, item, [f"{commands}; mkdir d; mv {target} d; ln -s d/{target} {target}", "submit"])[-1].reward == 0.0
    )
    assert play(env, item, [commands, "submit"])[-1].reward == 1.0


FORK = 'import os\nif os.fork() == 0:\n os.setsid(); os.execvp("sleep", ["sleep", "98761"])'


def test_programs_that_outlive_the_session():
    need()
    play(Terminal(), None, [f"(setsid nohup sleep 98761 >/dev/null 2>&1 &); python3 -c '{FORK}'"])
    assert left("98761") == []


def test_a_killed_host_leaves_no_process():
    need()
    program = (
        "import asyncio, sys; from env_adapters.terminal.adapter import Terminal; env = Terminal(); "
        "asyncio.run(env.reset(env.tasks('train')[0])); print('ready', flush=True); "
        "asyncio.run(env.step('sleep 98762'))"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, cwd=Path.cwd()) as host:
        assert host.stdout is not None and host.stdout.readline() == b"ready\n"
        until = time.monotonic() + 20
        while not [one for one in left("98762") if one.startswith("sleep")] and time.monotonic() < until:
            time.sleep(0.02)
        inside = psutil.Process(host.pid).children(recursive=True)
        assert len(inside) >= 3
        os.kill(host.pid, signal.SIGKILL)
    assert psutil.wait_procs(inside, timeout=20)[1] == []


def test_more_rights(sandbox):
    outcome = sandbox.run(
        "grep -E 'NoNewPrivs|CapEff|CapBnd|Seccomp:' /proc/self/status; unshare -Ur true; mount -t tmpfs x /tmp; "
        "cp /bin/bash b; chmod 4755 b; ./b -p -c id; find / -xdev -perm -4000 2>/dev/null | head -3; chroot / true; "
        "mount -o remount,rw /usr; mknod dev b 8 0; nsenter -t 1 -m true; echo | su -c id",
        10,
    )
    status = dict(line.split(":\t") for line in outcome.text.splitlines()[:4])
    assert status == {"CapEff": "0" * 16, "CapBnd": "0" * 16, "NoNewPrivs": "1", "Seccomp": "2"}
    assert "uid=0" not in outcome.text and "euid=0" not in outcome.text
    assert (
        outcome.text.count("not permitted")
        + outcome.text.count("ermission denied")
        + outcome.text.count("must be superuser")
        >= 4
    )


@pytest.mark.parametrize(
    "path",
    [
        "/usr/bin/python3",
        "/bin/bash",
        "/etc/passwd",
        "/usr/lib/os-release",
        "/etc/ld.so.cache",
        "/proc/sys/kernel/hostname",
    ],
)
def test_writing_to_the_system(sandbox, path):
    outcome = sandbox.run(f"echo x > {path}; echo status $?; rm -f {path}; mv {path} /tmp/; ls -l {path}", 5)
    assert "status 1" in outcome.text
    assert "No such file" not in outcome.text and outcome.text.count("cannot remove") == 2


TRACE = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
print('ATTACHED' if libc.ptrace(16, 1, 0, 0) == 0 else 'refused')
for name in ('mem', 'fd/1', 'fd/0', 'environ', 'maps'):
    try:
        open(f'/proc/1/{name}', 'rb+' if name in ('mem', 'fd/1') else 'rb').read(1)
        print('OPENED', name)
    except OSError as error:
        print(error)
"""


def test_tracing_the_first_process(sandbox):
    outcome = sandbox.run(
        f"python3 - <<'END'\n{TRACE}\nEND\nkill -9 1; kill -STOP 1; kill -INT 1; kill -TERM 1; kill -SEGV 1", 5
    )
    assert "ATTACHED" not in outcome.text and "OPENED" not in outcome.text
    assert sandbox.run("echo alive", 5).text == "alive\n"


CHEATS = {
    "exits before the comparison": "import os\nos._exit(0)",
    "raises SystemExit": "raise SystemExit(0)",
    "prints what tests print": "import os\nos.write(1, b'[true]\\n1.0\\nok\\nPASSED\\n')\nos._exit(0)",
    "returns what equals everything": "class Any(dict):\n    __eq__ = lambda a, b: True\n    __hash__ = None\n"
    "def __getattr__(name):\n    return lambda *a: Any()",
    "changes the library": "import json, builtins\njson.dumps = lambda *a, **k: '[]'\njson.load = lambda f: []",
    "writes to every descriptor": "import os\nfor d in range(1, 64):\n    try: os.write(d, b'1')\n"
    "    except OSError: pass",
    "kills its parent": "import os\nos.kill(os.getppid(), 9)\nos.kill(-1, 9)",
    "never ends": "while True: pass",
    "reads the tests": "import glob, os\n"
    "os.write(1, b''.join(open(p, 'rb').read() for p in glob.glob('/proc/*/cmdline')))\nos._exit(0)",
}


@pytest.fixture(scope="module")
def repair():
    """A task that calls functions of the agent's, and the name of its file."""
    need()
    env = Terminal()
    return env, next(one for one in env.tasks("train") if one.id.startswith("repair-small"))


@pytest.mark.parametrize("cheat", CHEATS)
def test_code_that_fakes_a_verdict(repair, cheat):
    env, item = repair
    assert play(env, item, [f"cat > lib.py <<'END'\n{CHEATS[cheat]}\nEND", "submit"])[-1].reward == 0.0


PLANTED = (
    *("conftest.py", "sitecustomize.py", "usercustomize.py", "json.py", "importlib.py", "os.py", "python3", "lib.pth"),
    *(
        "pytest.ini",
        "pyvenv.cfg",
        "__init__.py",
        ".bashrc",
        ".profile",
        "lib/__init__.py",
        "numbers.py",
        "encodings.py",
    ),
)


def test_files_that_are_read_before_the_code(repair):
    env, item = repair
    cheat = "import os, sys\nos.write(1, b'[]')\nos._exit(0)"
    plant = "; ".join(f"mkdir -p $(dirname {name}); printf '{cheat}' > {name}; chmod +x {name}" for name in PLANTED)
    plant += "; export PATH=/work:$PATH PYTHONPATH=/work PYTHONSTARTUP=/work/json.py"
    plant += " LD_PRELOAD=/work/os.py BASH_ENV=/work/.bashrc"
    assert play(env, item, [plant, "submit"])[-1].reward == 0.0
    solution = env.demonstration(item)[1].action
    assert play(env, item, [solution, plant.partition("; mkdir -p $(dirname lib/")[0], "submit"])[-1].reward == 1.0


def test_hidden_tests_are_nowhere_in_the_sandbox():
    need()
    env = Terminal()
    item = next(one for one in env.tasks("train") if one.id.startswith("tool-large"))
    for check in env._task(item).checks[:2]:
        word = max(check.expected.split(), key=len)
        look = f"grep -rlF {word!r} /work /tmp /etc /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null; "
        look += "ls /tests /logs"
        found = play(env, item, [look])[0].observation
        assert "/work" not in found and "cannot access '/tests'" in found


def test_sparse_files_earn_nothing(repair):
    """They take no place in the sandbox and too much outside; this is no environment error."""
    env, item = repair
    assert play(env, item, ["truncate -s 15M a b", "submit"])[-1].reward == 0.0


def test_an_episode_without_submit_earns_nothing():
    need()
    env = Terminal()
    item = env.tasks("train")[0]
    steps = play(env, item, [*(one.action for one in env.demonstration(item)), "submit", "submit"])
    assert [step.reward for step in steps if step.reward] == [1.0] and steps[-1].reward == 0.0


def test_a_session_that_breaks_its_sandbox_ends_without_reward_and_without_error():
    """An error would leave the episode out of the batch, which a policy could learn to cause."""
    need()

    async def broken():
        env = Terminal()
        await env.reset(env.tasks("train")[0])
        env._sandbox._process.kill()
        return await env.step("true")

    result = asyncio.run(broken())
    assert (result.reward, result.terminated, dict(result.info)) == (0.0, True, {"sandbox_ended": 1.0})
