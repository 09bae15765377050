"""Sessions of the ScienceWorld simulator, several in one JVM, isolated from each other.

All sessions of a JVM share one random generator and one counter for object numbers. A session saves both after each
of its calls and restores them before the next. Its answers therefore depend only on its task and its actions.
"""

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from env_adapters.scienceworld.jvm import Jvm, JvmPool
from verl_agent.envs.parsing import shorten
from verl_agent.errors import ConfigError, EnvCrashError, EnvError

VERSION = "1.2.3"
"""Release of the package `scienceworld` that `variations.json` was generated from."""

MAX_SESSIONS = 50
"""Maximum number of sessions in one JVM. Each takes 11 MB of its heap."""

OPTIONS = (
    "-Xmx768m",
    "-XX:+UseSerialGC",
    "-XX:+ExitOnOutOfMemoryError",  # exit, so that the pool replaces the JVM
    # The simulator lists objects in the order of their identity hashes, which depend on everything that ran before.
    # With the same hash for all objects, the order is that of insertion.
    "-XX:+UnlockExperimentalVMOptions",
    "-XX:hashCode=2",
    "--add-opens=java.base/java.util=ALL-UNNAMED",  # to read the state of the random generator
)
SCRAMBLE = 0x5DEECE66D
"""Constant that `java.util.Random.setSeed` combines with its argument by exclusive or."""


@dataclass(frozen=True, slots=True)
class CommandResult:
    """Result of one command in the simulator.

    Attributes:
        score: completed share of the task, 0 to 1; -1 for a failed task.
    """

    text: str
    score: float
    completed: bool


class Simulator(Jvm):
    """JVM that runs the simulator."""

    def __init__(self) -> None:
        jar = simulator_jar()
        # The simulator needs a table of types beside the jar; in any other folder it would write a new one.
        super().__init__([jar], OPTIONS, folder=jar.parent)
        try:
            self.run(self._prepare)
        except BaseException:
            self.end()
            raise

    def _prepare(self) -> None:
        lang, identifiers = self.view.java.lang, self.view.util.UniqueIdentifier
        # Each step prints pages of traces. Scala keeps the stream of its first output.
        lang.System.setOut(self.view.java.io.PrintStream(self.view.java.io.OutputStream.nullOutputStream()))
        seed = lang.Class.forName("java.util.Random").getDeclaredField("seed")
        seed.setAccessible(True)
        random = lang.Class.forName("scala.util.Random$").getField("MODULE$").get(None).self()
        self._read_seed, self._random, self._set_seed = seed.get, random, random.setSeed
        self._read_count, self._set_count = identifiers.count, getattr(identifiers, "count_$eq")
        self.new_interface: Any = self.view.scienceworld.runtime.pythonapi.PythonInterface

    @property
    def globals(self) -> tuple[int, int]:
        """State of the random generator and the object counter; use it only inside `run()`."""
        return int(self._read_seed(self._random)), int(self._read_count())

    @globals.setter
    def globals(self, state: tuple[int, int]) -> None:
        self._set_seed(state[0] ^ SCRAMBLE)
        self._set_count(state[1])


class SimulatorSession:
    """Session that plays one task.

    Args:
        jvms: number of JVMs for the sessions of this process; more are started when they are full.
        gold: True to let the simulator solve the task first, for `gold_path()`.

    Raises:
        ConfigError: the package or Java is missing.
        EnvError: the simulator refuses the task, or its JVM failed.
    """

    def __init__(self, task: str, variation: int, jvms: int = 1, gold: bool = False) -> None:
        self.simulator = simulators().acquire(jvms, self)
        self._interface: Any = None
        try:
            self.simulator.run(lambda: self._load(task, variation, gold))
        except BaseException:
            self.close()
            raise

    def _load(self, task: str, variation: int, gold: bool) -> None:
        self._interface = self.simulator.new_interface()
        self._drop = weakref.finalize(self, self.simulator.drop, self._interface._get_object_id())
        self._drop.atexit = False
        problem = self._interface.load(task, variation, "", gold)
        if problem:
            raise EnvError(f"ScienceWorld cannot load {task!r}, variation {variation}: {shorten(problem, 300)}")
        self._globals = self.simulator.globals

    def describe(self) -> tuple[str, str]:
        """Return the task description and the surroundings; this takes no simulated time."""

        def describe() -> tuple[str, str]:
            self.simulator.globals = self._globals
            return str(self._interface.getTaskDescription()), str(self._interface.freeActionLook())

        return self.simulator.run(describe)

    def step(self, command: str) -> CommandResult:
        """Execute one command.

        Raises:
            EnvError: the simulator or its JVM failed.
        """
        # The client py4j cannot transfer every character, and commands are ASCII.
        plain = command.encode("ascii", "replace").decode()

        def step() -> CommandResult:
            self.simulator.globals = self._globals
            text = str(self._interface.step(plain))
            answer = CommandResult(text, float(self._interface.getScore()), bool(self._interface.getCompleted()))
            self._globals = self.simulator.globals
            if answer.score < 0:
                self._check_for_errors(text)
            return answer

        return self.simulator.run(step)

    def _check_for_errors(self, text: str) -> None:
        """Raise EnvCrashError if the simulator failed; a failed task has the same score of -1."""
        option = self._interface.agentInterface()
        agent = option.get()
        broken = bool(agent.isInErrorState())
        for java_object in (option, agent):
            self.simulator.drop(java_object._get_object_id())
        if broken:
            raise EnvCrashError(f"the simulator failed: {shorten(text, 300)}")

    def gold_path(self) -> list[str]:
        """Return the gold path, for a session with `gold=True`."""

        def read() -> str:
            actions = self._interface.getGoldActionSequence()
            self.simulator.drop(actions._get_object_id())
            return str(self.simulator.view.java.lang.String.join("\n", actions))

        return self.simulator.run(read).split("\n")

    def goal_progress(self) -> str:
        """Return the simulator's table of the sub-goals that its score counts."""
        return self.simulator.run(lambda: str(self._interface.getGoalProgressStr()))

    def variations(self) -> dict[str, list[int]]:
        """Return the official training, development and test variations of the task."""

        def read(ask: Callable[[], Any]) -> list[int]:
            numbers = ask()
            self.simulator.drop(numbers._get_object_id())
            return [int(number) for number in numbers]

        ask = self._interface
        questions = {"train": ask.getVariationsTrain, "dev": ask.getVariationsDev, "test": ask.getVariationsTest}
        return {part: self.simulator.run(partial(read, question)) for part, question in questions.items()}

    def close(self) -> None:
        """Release the session without blocking. May be called more than once."""
        self.simulator.sessions.discard(self)
        if self._interface is not None:
            self._drop()


@cache
def simulators() -> JvmPool[Simulator]:
    """Return the pool of this process; it starts a simulator when the first session needs one."""
    return JvmPool(Simulator, MAX_SESSIONS)


def simulator_jar() -> Path:
    """Return the path of the simulator in the installed package `scienceworld`.

    Raises:
        ConfigError: the package is not installed, or is another release than `VERSION`.
    """
    spec = find_spec("scienceworld")
    if spec is None or spec.origin is None:
        raise ConfigError("ScienceWorld is not installed: pip install 'verl-agent[scienceworld]'.")
    if version("scienceworld") != VERSION:
        raise ConfigError(
            f"scienceworld {version('scienceworld')} is installed, but the task list is for {VERSION}: "
            f"pip install scienceworld=={VERSION}."
        )
    return Path(spec.origin).with_name("scienceworld.jar")
