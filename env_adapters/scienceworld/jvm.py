"""Java virtual machines shared by the sessions of a process: started on demand, used by one thread at a time.

This module knows py4j, not ScienceWorld. A crash fails only the sessions of that JVM; the next session gets a new one.
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
from verl_agent.errors import EnvCrashError, EnvError

logger = logging.getLogger(__name__)

START_TIMEOUT_S = 120.0
"""Time limit of a JVM's first answer in seconds."""
DIED = "the JVM of this session has died, and the next session gets a new one"

T = TypeVar("T")


class OnceClient(GatewayClient):
    """Client that sends each command once. py4j repeats a command without an answer, which would repeat a step."""

    def send_command(self, command: str, retry: bool = True, binary: bool = False) -> Any:
        """Send a command of py4j's protocol; a failed connection is not reused."""
        connection = self._get_connection()
        try:
            answer = connection.send_command(command)
        except BaseException:
            connection.close(reset=True)
            raise
        self._give_back_connection(connection)
        return answer


class Jvm:
    """Process of one JVM.

    Attributes:
        view: py4j's view of the Java classes; use it only inside `run()`.
        sessions: sessions that use this JVM.

    Args:
        jars: class path without py4j's own jar.
        options: options of the command `java`.
        folder: working directory; None for the current one.
        timeout_s: time limit of one call in seconds; a JVM that exceeds it is killed.

    Raises:
        ConfigError: no suitable Java is installed.
        EnvError: the JVM does not start.
    """

    def __init__(
        self, jars: Sequence[Path], options: Sequence[str], folder: Path | None = None, timeout_s: float = 120.0
    ) -> None:
        self.timeout_s = timeout_s
        self.sessions: WeakSet[object] = WeakSet()
        self._dropped: deque[str] = deque()
        self._lock = threading.Lock()
        self._errors = TemporaryFile()  # noqa: SIM115 - closed together with the process that writes to it
        class_path = os.pathsep.join([os.path.abspath(find_jar_path()), *map(str, jars)])
        command = [find_java(), *options, "-cp", class_path, "py4j.GatewayServer"]
        command += ["--die-on-broken-pipe", "--enable-auth", "0"]  # the JVM exits with this process, however that ends
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
        """Return the port and the token that py4j's server prints first."""
        timer = threading.Timer(START_TIMEOUT_S, self._process.kill)
        timer.daemon = True
        timer.start()
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            port, token = lines.readline().strip(), lines.readline().strip()
            timer.cancel()
            if not port.isdigit():  # Java printed an error on the same stream and exited
                message = " ".join(f"{port} {token} {lines.read(1_000)}".split())
                reason = f"{self._last_output()} {message}"
                self.end()
                raise EnvError(f"a JVM did not start: {reason}")
        return int(port), token

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def run(self, work: Callable[[], T]) -> T:
        """Call `work` while no other thread uses the JVM.

        Raises:
            EnvCrashError: Java threw an exception.
            EnvError: Java ran out of memory, the JVM has exited, or it did not answer and was killed.
        """
        with self._lock:
            if not self.alive:
                raise EnvError(f"{DIED}: {self._last_output()}")
            try:
                while self._dropped:
                    self._client.garbage_collect_object(self._dropped.popleft())
                return work()
            except Py4JJavaError as error:
                reason = self._explain(error)
                kind = EnvError if "OutOfMemoryError" in reason else EnvCrashError
                raise kind(f"Java: {reason}") from None
            except Py4JNetworkError as error:
                silent = isinstance(error.cause, TimeoutError)
                reason = f"no answer within {self.timeout_s:g} s" if silent else self._last_output()
                self.end()
                raise EnvError(f"{DIED}: {reason}") from None
            except Exception:
                raise
            except BaseException:  # interrupted during a call: the state of the JVM is unknown
                self.end()
                raise

    def drop(self, key: str) -> None:
        """Release the Java object with py4j's id `key`.

        Never blocks, so that a garbage collector may call it; the JVM is notified at the next `run()`.
        """
        self._dropped.append(key)

    def end(self) -> None:
        """Kill the process and close its streams. May be called more than once."""
        self._process.kill()
        self._process.wait()
        self._output = self._last_output()
        for stream in (self._process.stdin, self._errors):
            if stream is not None:
                stream.close()
        if hasattr(self, "_client"):
            self._client.close()

    def _explain(self, error: Py4JJavaError) -> str:
        """Return the Java exception in one line."""
        text = str(error.java_exception.toString())
        self.drop(error.java_exception._get_object_id())
        return shorten(text, 300)

    def _last_output(self) -> str:
        """Return the exit code and the error output of the process."""
        if self._errors.closed:
            return self._output
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=5)
        self._errors.seek(0)
        words = " ".join(self._errors.read(2_000).decode(errors="replace").split())
        return shorten(f"exit code {self._process.returncode}. {words}".strip(), 300)


J = TypeVar("J", bound=Jvm)


class JvmPool(Generic[J]):
    """Pool of the JVMs of a process; they end with it.

    Args:
        start: function that starts a JVM.
        sessions_per_jvm: maximum number of sessions in one JVM, limited by its memory.
    """

    def __init__(self, start: Callable[[], J], sessions_per_jvm: int) -> None:
        self._start, self._limit = start, sessions_per_jvm
        self._running: list[J] = []
        self._lock = threading.Lock()
        atexit.register(self.end)
        os.register_at_fork(after_in_child=self._forget)

    def acquire(self, min_jvms: int, session: object) -> J:
        """Assign a session to the JVM with the fewest sessions.

        A new JVM is started when all are full, and while fewer than `min_jvms` run and every one has a session.

        Raises:
            ConfigError: no suitable Java is installed.
            EnvError: a JVM does not start.
        """
        with self._lock:
            for jvm in [jvm for jvm in self._running if not jvm.alive]:
                jvm.end()
                self._running.remove(jvm)
            fewest = min((len(jvm.sessions) for jvm in self._running), default=self._limit)
            if fewest >= self._limit or (fewest > 0 and len(self._running) < min_jvms):
                self._running.append(self._start())
            chosen = min(self._running, key=lambda jvm: len(jvm.sessions))
            chosen.sessions.add(session)
            return chosen

    def end(self) -> None:
        """Kill all JVMs; their open sessions fail."""
        for jvm in self._running:
            jvm.end()
        self._running = []

    def _forget(self) -> None:
        """Leave the JVMs to the parent after a fork. They stay referenced: collecting them would close its sockets."""
        self._inherited, self._running = self._running, []
        self._lock = threading.Lock()
