"""Java virtual machines shared by the sessions of a process: started when needed, entered by one thread at a time.

Knows py4j, not ScienceWorld. A JVM that dies fails its own sessions only; the next session gets a new one.
"""

import atexit
import logging
import os
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Generic, TypeVar
from weakref import WeakSet

from py4j.java_gateway import GatewayClient, GatewayParameters, JavaGateway, find_jar_path
from py4j.protocol import Py4JJavaError, Py4JNetworkError

from env_adapters.scienceworld.java import find_java
from verl_agent.envs.parsing import shorten
from verl_agent.errors import EnvError

logger = logging.getLogger(__name__)

START_TIMEOUT_S = 120.0
"""Seconds that a JVM may take to answer for the first time."""
DIED = "the JVM of this session has died, and the next session gets a new one"

T = TypeVar("T")


class OnceClient(GatewayClient):
    """Sends each command once. py4j repeats one whose answer got lost, and a step would be taken twice."""

    def send_command(self, command: str, retry: bool = True, binary: bool = False) -> Any:
        """Send a command of py4j's protocol; a connection that failed is not used again."""
        connection = self._get_connection()
        try:
            answer = connection.send_command(command)
        except BaseException:
            connection.close(reset=True)
            raise
        self._give_back_connection(connection)
        return answer


class Jvm:
    """One JVM.

    Attributes:
        view: py4j's view of its classes; to be used inside `run()` only.
        sessions: those that play in it.

    Args:
        jars: class path, besides py4j's own.
        options: of the command `java`.
        folder: where it runs; None for the current one.
        timeout_s: seconds that one call may take; a JVM that takes longer is ended.

    Raises:
        ConfigError: no Java that will do.
        EnvError: the JVM does not start.
    """

    def __init__(
        self, jars: Sequence[Path], options: Sequence[str], folder: Path | None = None, timeout_s: float = 120.0
    ) -> None:
        self.timeout_s = timeout_s
        self.sessions: WeakSet[object] = WeakSet()
        self._dropped: deque[str] = deque()
        self._lock = threading.Lock()
        self._errors = TemporaryFile()  # noqa: SIM115 - it lives as long as the process that writes to it
        class_path = os.pathsep.join([os.path.abspath(find_jar_path()), *map(str, jars)])
        command = [find_java(), *options, "-cp", class_path, "py4j.GatewayServer"]
        command += ["--die-on-broken-pipe", "--enable-auth", "0"]  # it ends when this process does, however that is
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=self._errors, text=True, cwd=folder)
        port, token = self._greeting()
        parameters = GatewayParameters(
            port=port, auth_token=token, read_timeout=timeout_s, enable_memory_management=False
        )
        self._client = OnceClient(gateway_parameters=parameters)
        gateway = JavaGateway(gateway_parameters=parameters)
        gateway.set_gateway_client(self._client)
        self.view: Any = gateway.jvm
        logger.info("JVM %d started", self.pid)

    def _greeting(self) -> tuple[int, str]:
        """The port and the token, which py4j's server prints first."""
        timer = threading.Timer(START_TIMEOUT_S, self._process.kill)
        timer.daemon = True
        timer.start()
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            port, token = lines.readline().strip(), lines.readline().strip()
            timer.cancel()
            if not port.isdigit():  # Java complains on the same stream, and then ends
                complaint = " ".join(f"{port} {token} {lines.read(1_000)}".split())
                words = f"{self._last_words()} {complaint}"
                self.end()
                raise EnvError(f"a JVM did not start: {words}")
        return int(port), token

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it can be called."""
        return self._process.poll() is None

    def run(self, work: Callable[[], T]) -> T:
        """Call into the JVM while no other thread does.

        Raises:
            EnvError: Java threw an exception, or the JVM is dead, or it did not answer and was ended.
        """
        with self._lock:
            if not self.alive:
                raise EnvError(f"{DIED}: {self._last_words()}")
            try:
                while self._dropped:
                    self._client.garbage_collect_object(self._dropped.popleft())
                return work()
            except Py4JJavaError as error:
                raise EnvError(f"Java: {self._explain(error)}") from None
            except Py4JNetworkError as error:
                silent = isinstance(error.cause, TimeoutError)
                words = f"no answer within {self.timeout_s:g} s" if silent else self._last_words()
                self.end()
                raise EnvError(f"{DIED}: {words}") from None
            except Exception:
                raise
            except BaseException:  # interrupted half way: nobody knows what the JVM is doing now
                self.end()
                raise

    def drop(self, key: str) -> None:
        """Give up the Java object with py4j's id `key`.

        Never waits, so that a garbage collector may call it; the JVM is told at the next `run()`.
        """
        self._dropped.append(key)

    def end(self) -> None:
        """End the process and close what belongs to it. May be called more than once."""
        self._process.kill()
        self._process.wait()
        self._words = self._last_words()
        for stream in (self._process.stdin, self._errors):
            if stream is not None:
                stream.close()
        if hasattr(self, "_client"):
            self._client.close()

    def _explain(self, error: Py4JJavaError) -> str:
        """What Java threw, in a line."""
        text = str(error.java_exception.toString())
        self.drop(error.java_exception._get_object_id())
        return shorten(text, 300)

    def _last_words(self) -> str:
        """How the process ended and what it complained about."""
        if self._errors.closed:
            return self._words
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=5)
        self._errors.seek(0)
        words = " ".join(self._errors.read(2_000).decode(errors="replace").split())
        return shorten(f"exit code {self._process.returncode}. {words}".strip(), 300)


J = TypeVar("J", bound=Jvm)


class Pool(Generic[J]):
    """The JVMs of a process, ended with it.

    Args:
        start: makes a JVM.
        seats: sessions that one has memory for.
    """

    def __init__(self, start: Callable[[], J], seats: int) -> None:
        self._start, self._seats = start, seats
        self._running: list[J] = []
        self._lock = threading.Lock()
        atexit.register(self.end)
        os.register_at_fork(after_in_child=self._forget)

    def take(self, spread: int, session: object) -> J:
        """Place a session in the JVM that has the fewest.

        A new one is started while fewer than `spread` run and none of them is idle, and when all are full.

        Raises:
            ConfigError: no Java that will do.
            EnvError: a JVM does not start.
        """
        with self._lock:
            for jvm in [jvm for jvm in self._running if not jvm.alive]:
                jvm.end()
                self._running.remove(jvm)
            fewest = min((len(jvm.sessions) for jvm in self._running), default=self._seats)
            if fewest >= self._seats or (fewest > 0 and len(self._running) < spread):
                self._running.append(self._start())
            chosen = min(self._running, key=lambda jvm: len(jvm.sessions))
            chosen.sessions.add(session)
            return chosen

    def end(self) -> None:
        """End all of them; sessions that still play fail."""
        for jvm in self._running:
            jvm.end()
        self._running = []

    def _forget(self) -> None:
        """After a fork the JVMs are the parent's. They stay referenced: collecting them would shut its sockets."""
        self._inherited, self._running = self._running, []
        self._lock = threading.Lock()
