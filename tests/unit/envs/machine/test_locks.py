"""Locks between processes, with `flock` and on file systems that refuse it."""

import errno
import json
import os
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests import ROOT
from tests.support.cluster_files import refusing
from verl_agent.envs.machine.locks import STALE_S, FileLock, has_owner_file, is_held, locked
from verl_agent.envs.machine.processes import process_space, process_started
from verl_agent.errors import ConfigError

REFUSALS = [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL]
HOLDS = """
import sys
from pathlib import Path
from verl_agent.envs.machine.locks import FileLock
lock = FileLock(Path(sys.argv[1]))
lock.acquire(say=lambda: print("waits", flush=True))
print("holds", flush=True)
sys.stdin.readline()
lock.release()
print("released", flush=True)
sys.stdin.readline()
"""
ASKS = """
import sys
from pathlib import Path
from verl_agent.envs.machine.locks import FileLock, is_held
path = Path(sys.argv[1])
print(is_held(path), FileLock(path).acquire(wait=False))
"""


def environment(folder: Path, number: int) -> dict[str, str]:
    return refusing(folder, "flock fcntl", number) if number else dict(os.environ)


@contextmanager
def holder(path: Path, number: int = 0):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=environment(path.parent, number),
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def answer(path: Path, number: int) -> str:
    command, given = [sys.executable, "-c", ASKS, str(path)], environment(path.parent, number)
    return subprocess.run(command, cwd=ROOT, env=given, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.parametrize("number", [0, *REFUSALS])
@pytest.mark.parametrize("kind", ["file", "folder"])
def test_one_process_holds_a_lock_until_it_releases_it_or_is_killed(kind, number, tmp_path):
    path = tmp_path / "lock"
    if kind == "folder":
        path.mkdir()
    with holder(path, number) as first:
        assert first.stdout.readline() == "holds\n"
        assert answer(path, number) == "True False"
        with holder(path, number) as second:
            assert second.stdout.readline() == "waits\n"
            first.stdin.write("\n")
            first.stdin.flush()
            assert second.stdout.readline() == "holds\n"
            second.kill()
            second.wait()
        assert answer(path, number) == "False True"


@pytest.mark.parametrize("number", [0, errno.ENOLCK])
def test_twenty_processes_never_hold_a_lock_together(number, tmp_path):
    script = """
import os, sys, time
from pathlib import Path
from verl_agent.envs.machine.locks import locked
for _ in range(5):
    with locked(Path(sys.argv[1]) / "lock"):
        inside = os.open(sys.argv[1] + "/inside", os.O_CREAT | os.O_EXCL)
        os.close(inside)
        with open(sys.argv[1] + "/count", "a") as count:
            count.write("1")
        time.sleep(0.001)
        os.unlink(sys.argv[1] + "/inside")
"""
    given = environment(tmp_path, number)
    command = [sys.executable, "-c", script, str(tmp_path)]
    processes = [subprocess.Popen(command, cwd=ROOT, env=given) for _ in range(20)]
    assert [process.wait() for process in processes] == [0] * 20
    assert (tmp_path / "count").read_text() == "1" * 100
    assert {path.name for path in tmp_path.iterdir()} <= {"lock", "count"}


def own(**changes: object) -> dict[str, object]:
    me = {"host": socket.gethostname(), "space": process_space(), "pid": os.getpid()}
    return {**me, "started": process_started(os.getpid()), **changes}


@pytest.mark.parametrize(
    ("owner", "age_s", "held"),
    [
        (own(), 10 * STALE_S, True),  # a suspended process of this machine holds it
        (own(started="1"), 0, False),  # its id was used again
        (own(pid=2**22 + 1), 0, False),
        (own(space="another container", pid=2**22 + 1), 0, True),
        (own(space="another container", pid=2**22 + 1), STALE_S + 10, False),
        (own(pid="text"), 0, True),
        ({"host": socket.gethostname(), "space": process_space()}, 0, True),
        (own(host="elsewhere.test"), 0, True),
        (own(host="elsewhere.test"), STALE_S / 2, True),
        (own(host="elsewhere.test"), STALE_S + 10, False),
        (None, 0, True),  # half written
        (None, STALE_S + 10, False),
    ],
)
def test_a_holder_is_believed_as_long_as_it_runs_or_renews_its_file(owner, age_s, held, tmp_path):
    file = tmp_path / "lock.owner"
    file.write_text("{" if owner is None else json.dumps(owner))
    then = time.time() - age_s
    os.utime(file, (then, then))
    assert has_owner_file(tmp_path / "lock") == is_held(tmp_path / "lock") == held
    assert answer(tmp_path / "lock", errno.ENOLCK) == f"{held} {not held}"


def test_threads_of_a_process_exclude_each_other(tmp_path):
    inside, most = [], []

    def work() -> None:
        with locked(tmp_path / "lock"):
            inside.append(1)
            most.append(len(inside))
            time.sleep(0.002)
            inside.pop()

    threads = [threading.Thread(target=work) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 10


def test_the_content_of_a_locked_file_can_be_written(tmp_path):
    lock = FileLock(tmp_path / "lock", of_process=True)
    assert lock.acquire(wait=False)
    lock.write("a longer text")
    lock.write("short")
    assert (tmp_path / "lock").read_text() == "short"


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"missing cannot be written \(No such file or directory\).*another folder"):
        FileLock(tmp_path / "missing" / "lock").acquire()


USERS = {
    "results of what-if": """
from verl_agent.evaluation.what_if.results import append_results
append_results(folder / "e.jsonl", [{"a": 1}, {"b": 2}])
assert len((folder / "e.jsonl").read_text().splitlines()) == 2
""",
    "labels": """
from verl_agent.trace.labels import KEY_FIELDS, Label, LabelFile
file = LabelFile(folder / "labels.json")
file.change(tuple("key" for _ in KEY_FIELDS), Label(("good",)))
assert file.read()
""",
    "merging of adapters": """
(folder / "model").mkdir()
from verl_agent.models.lora import merge_adapters
merge_adapters(folder / "model")
""",
    "search index": """
from env_adapters.deepsearch.store import exclusive_build
with exclusive_build(folder):
    pass
""",
    "sites": """
from env_adapters.web_sites.control import exclusive_start, has_supervisor
from env_adapters.web_sites.folders import Home
from env_adapters.web_sites.supervisor import acquire
from verl_agent.envs.machine.locks import FileLock
home = Home(folder / "sites")
with exclusive_start(home, print):
    assert not has_supervisor(home)
    lock = FileLock(home.lock)
    assert acquire(lock) and has_supervisor(home) and not acquire(FileLock(home.lock))
    lock.release()
    assert not has_supervisor(home)
""",
}


@pytest.mark.parametrize("number", REFUSALS)
@pytest.mark.parametrize("user", USERS)
def test_everything_that_locks_works_without_locks(user, number, tmp_path):
    script = f"from pathlib import Path\nfolder = Path({str(tmp_path)!r})\n{USERS[user]}"
    given = environment(tmp_path, number)
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, env=given, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in tmp_path.rglob("*.owner")] == []
