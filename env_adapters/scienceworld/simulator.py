"""Worlds of the ScienceWorld simulator, several in one JVM, none of which can change another.

The simulator draws from one random generator and numbers its objects by one counter for all worlds of its JVM.
A world saves both after each of its calls and puts them back before the next, so what it answers follows from its
task and its actions alone.
"""

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from env_adapters.scienceworld.jvm import Jvm, Pool
from verl_agent.envs.parsing import shorten
from verl_agent.errors import ConfigError, EnvError

VERSION = "1.2.3"
"""Release of the package `scienceworld` that the table of tasks belongs to."""

WORLDS = 50
"""Most worlds in one JVM. Each takes 11 MB of its heap."""

OPTIONS = (
    "-Xmx768m",
    "-XX:+UseSerialGC",
    "-XX:+ExitOnOutOfMemoryError",  # so that the JVM is replaced, rather than limping on
    # The simulator lists objects in the order of their identity hashes, which depend on all that ran before.
    # With one hash for all, the order is that of insertion.
    "-XX:+UnlockExperimentalVMOptions",
    "-XX:hashCode=2",
    "--add-opens=java.base/java.util=ALL-UNNAMED",  # to read the state of the random generator
)
SCRAMBLE = 0x5DEECE66D
"""What `java.util.Random.setSeed` mixes into its argument by exclusive or."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the simulator makes of one command.

    Attributes:
        text: what is seen.
        score: part of the task that is done, 0 to 1; -1 when it has failed.
        completed: the task is done.
    """

    text: str
    score: float
    completed: bool


class Simulator(Jvm):
    """A JVM with the simulator in it."""

    def __init__(self) -> None:
        jar = simulator_jar()
        # Beside the jar lies a table of types, which the simulator would write anew in any other folder.
        super().__init__([jar], OPTIONS, folder=jar.parent)
        try:
            self.run(self._prepare)
        except BaseException:
            self.end()
            raise

    def _prepare(self) -> None:
        lang, identifiers = self.view.java.lang, self.view.util.UniqueIdentifier
        # Each step prints pages of traces. Scala keeps the stream that it finds when it prints first.
        lang.System.setOut(self.view.java.io.PrintStream(self.view.java.io.OutputStream.nullOutputStream()))
        seed = lang.Class.forName("java.util.Random").getDeclaredField("seed")
        seed.setAccessible(True)
        random = lang.Class.forName("scala.util.Random$").getField("MODULE$").get(None).self()
        self._read_seed, self._random, self._set_seed = seed.get, random, random.setSeed
        self._read_count, self._set_count = identifiers.count, getattr(identifiers, "count_$eq")
        self.new_interface: Any = self.view.scienceworld.runtime.pythonapi.PythonInterface

    @property
    def globals(self) -> tuple[int, int]:
        """State of the random generator, and how many objects were numbered; inside `run()` only."""
        return int(self._read_seed(self._random)), int(self._read_count())

    @globals.setter
    def globals(self, state: tuple[int, int]) -> None:
        self._set_seed(state[0] ^ SCRAMBLE)
        self._set_count(state[1])


class SimulatorSession:
    """One task being played.

    Attributes:
        simulator: the JVM that it is in.

    Args:
        task: the simulator's name of it.
        variation: which one, from 0.
        jvms: JVMs over which the worlds of this process are spread; more are started when those are full.
        gold: have the simulator solve the task first, for `gold_path()`.

    Raises:
        ConfigError: the package or Java is missing.
        EnvError: the simulator refuses the task, or its JVM failed.
    """

    def __init__(self, task: str, variation: int, jvms: int = 1, gold: bool = False) -> None:
        self.simulator = simulators().take(jvms, self)
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

    def look(self) -> tuple[str, str]:
        """What the task is, and what is seen around; takes no time."""

        def look() -> tuple[str, str]:
            self.simulator.globals = self._globals
            return str(self._interface.getTaskDescription()), str(self._interface.freeActionLook())

        return self.simulator.run(look)

    def step(self, command: str) -> Answer:
        """Carry out one command.

        Raises:
            EnvError: the simulator failed, or its JVM did.
        """
        plain = command.encode("ascii", "replace").decode()  # py4j does not carry every character, and none is needed

        def step() -> Answer:
            self.simulator.globals = self._globals
            text = str(self._interface.step(plain))
            answer = Answer(text, float(self._interface.getScore()), bool(self._interface.getCompleted()))
            self._globals = self.simulator.globals
            if answer.score < 0:
                self._check_for_errors(text)
            return answer

        return self.simulator.run(step)

    def _check_for_errors(self, text: str) -> None:
        """Tell a failed simulator from a failed task; both have a score of -1."""
        option = self._interface.agentInterface()
        agent = option.get()
        broken = bool(agent.isInErrorState())
        for java_object in (option, agent):
            self.simulator.drop(java_object._get_object_id())
        if broken:
            raise EnvError(f"the simulator failed: {shorten(text, 300)}")

    def gold_path(self) -> list[str]:
        """The commands with which the simulator solved the task, if it was asked to."""

        def read() -> str:
            actions = self._interface.getGoldActionSequence()
            self.simulator.drop(actions._get_object_id())
            return str(self.simulator.view.java.lang.String.join("\n", actions))

        return self.simulator.run(read).split("\n")

    def variations(self) -> dict[str, list[int]]:
        """The official training, development and test variations of the task."""

        def read(ask: Callable[[], Any]) -> list[int]:
            numbers = ask()
            self.simulator.drop(numbers._get_object_id())
            return [int(number) for number in numbers]

        ask = self._interface
        questions = {"train": ask.getVariationsTrain, "dev": ask.getVariationsDev, "test": ask.getVariationsTest}
        return {part: self.simulator.run(partial(read, question)) for part, question in questions.items()}

    def close(self) -> None:
        """Give the world up; never waits. May be called more than once."""
        self.simulator.sessions.discard(self)
        if self._interface is not None:
            self._drop()


@cache
def simulators() -> Pool[Simulator]:
    """The simulators of this process; none is started before a world needs it."""
    return Pool(Simulator, WORLDS)


def simulator_jar() -> Path:
    """The simulator in the installed package `scienceworld`.

    Raises:
        ConfigError: it is not installed, or not the release that the table of tasks belongs to.
    """
    spec = find_spec("scienceworld")
    if spec is None or spec.origin is None:
        raise ConfigError("ScienceWorld is not installed: pip install 'verl-agent[scienceworld]'.")
    if version("scienceworld") != VERSION:
        raise ConfigError(
            f"scienceworld {version('scienceworld')} is installed, and tasks are listed for {VERSION}: "
            f"pip install scienceworld=={VERSION}."
        )
    return Path(spec.origin).with_name("scienceworld.jar")
