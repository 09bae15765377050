"""A running sandbox: starts the driver, calls it within deadlines, and ends it."""

import base64
import json
import os
import re
import select
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from env_adapters.terminal.runtimes import Limits, Runtime, SandboxLayout
from verl_agent.errors import EnvError

START_S = 30.0
GRACE_S = 20.0
"""Seconds beyond the limit of a command after which a driver that does not answer is ended."""
ENDING_S = 20.0
"""Most seconds for the end of a container, whose daemon may be busy."""
PROGRAM = "import json, sys; exec(json.loads(sys.stdin.readline()))"
PROGRAM_S = 1e6
"""Seconds of a program with its own agent loop; its episode has limits of its own."""
PROGRAM_BYTES = 1 << 20

MAX_ANSWER = 1 << 20
"""Most bytes of an answer of a driver beside the content that the call asks for."""

EXPANSION = 6
"""Most bytes of an answer for each character or byte of content: JSON writes some characters as `\\u0000`."""

NOISE = re.compile(r"^bash: \[\d+: \d+ \(\d+\)\] tcsetattr: .*\n", re.MULTILINE)
"""Complaint of an interactive shell without a terminal when a signal ends a command."""

Files = Mapping[str, tuple[int, bytes]]
"""Mode and content of files by name, relative to the working folder."""


class SandboxEndedError(EnvError):
    """The driver of a sandbox has ended or does not answer."""


@dataclass(frozen=True, slots=True)
class CommandOutcome:
    """Result of a command.

    Attributes:
        text: output, without its middle if it is too long.
        status: exit status; None if the command was ended or ended the shell.
        reason: limit that ended it, `exit` if it ended the shell, or "".
        kept: True if the shell still has its folder and variables.
        seconds: duration.
    """

    text: str
    status: int | None
    reason: str
    kept: bool
    seconds: float


class Sandbox:
    """Sandbox with a shell.

    Attributes:
        limits: limits of all its processes.
        reason: limit that ended the last program of `execute`, or "".
    """

    def __init__(self, runtime: Runtime, limits: Limits, layout: SandboxLayout) -> None:
        """Start the sandbox.

        Raises:
            EnvError: it does not start.
        """
        self.limits, self.reason, self._buffer = limits, "", b""
        start, user = runtime.start(limits, layout), runtime.user
        self._ending = start.ending
        try:
            self._process = subprocess.Popen(
                start.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd="/",
                pass_fds=start.descriptors, user=user, group=user, extra_groups=[] if user else None,
            )  # fmt: skip
        except OSError as error:
            raise EnvError(f"the sandbox does not start: {error}") from error
        finally:
            for descriptor in start.descriptors:
                os.close(descriptor)
        try:
            self._send(start.driver)
            self._answer(START_S)
        except SandboxEndedError as error:
            raise EnvError(f"the sandbox does not start: {error}") from error

    def run(self, command: str, seconds: float) -> CommandOutcome:
        """Run a command in the shell for at most `seconds`."""
        began = time.monotonic()
        answer = self._call(
            "run", command, seconds, self.limits.output_chars, seconds=seconds, most=self.limits.output_chars
        )
        head, tail, left = (str(answer.get(key, "")) for key in ("head", "tail", "left"))
        if left not in ("", "0"):
            head = f"{head}\n[{left} characters left out]\n"
        status = answer.get("status")
        status = status if isinstance(status, int) else None
        text = NOISE.sub("", printable(head + tail))
        return CommandOutcome(
            text, status, str(answer.get("reason", "")), bool(answer.get("kept")), time.monotonic() - began
        )

    def execute(self, argv: Sequence[str], stdin: bytes, seconds: float, most: int) -> bytes | None:
        """Return what a program wrote, which runs beside no other; None if it exceeded a limit."""
        answer = self._call("execute", list(argv), _encoded(stdin), seconds, most, seconds=seconds, most=most)
        self.reason = str(answer.get("reason") or answer.get("error") or "")
        return None if self.reason else _decoded(answer.get("output"))

    def run_program(self, text: str, stdin: bytes) -> tuple[bytes, str]:
        """Run the text of a Python program until it ends; return its output and the limit that ended it, or ""."""
        argv, stdin = ["python3", "-I", "-S", "-c", PROGRAM], json.dumps(text).encode() + b"\n" + stdin
        arguments = argv, _encoded(stdin), PROGRAM_S, PROGRAM_BYTES
        answer = self._call("execute", *arguments, seconds=PROGRAM_S, most=PROGRAM_BYTES)
        return _decoded(answer.get("output", "")), str(answer.get("reason") or answer.get("error") or "")

    def kill(self) -> None:
        """End the processes, so that a call in another thread returns; `end` is still needed."""
        self._process.kill()

    def put(self, files: Files) -> bool:
        """Write files; return True if all fit."""
        answer = self._call("put", {name: (mode, _encoded(data)) for name, (mode, data) in files.items()})
        return "error" not in answer

    def take(self, folder: str) -> Files | None:
        """Return the regular files below a folder and end all processes; None if they are too many or too large."""
        answer = self._call("take", folder, self.limits.disk_mb << 20, most=self.limits.disk_mb << 20)
        files = answer.get("files")
        if not isinstance(files, dict):
            return None
        return {str(name): (int(mode) & 0o777, _decoded(data)) for name, (mode, data) in files.items()}

    def end(self) -> None:
        """End the sandbox with all its processes. May be called more than once."""
        self._process.kill()  # the kernel ends what is inside the namespaces of bubblewrap
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                with suppress(OSError):
                    stream.close()
        self._process.wait()
        ending, self._ending = self._ending, ()
        if ending:
            with suppress(OSError, subprocess.TimeoutExpired):
                subprocess.run(ending, capture_output=True, timeout=ENDING_S, check=False)

    def _send(self, line: bytes) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line)
            self._process.stdin.flush()
        except (OSError, ValueError) as error:
            self.end()
            raise SandboxEndedError("it has ended.") from error

    def _call(self, name: str, *arguments: Any, seconds: float = 0.0, most: int = 0) -> dict[str, Any]:
        self._send(json.dumps((name, arguments)).encode() + b"\n")
        try:
            return self._answer(seconds + GRACE_S, MAX_ANSWER + EXPANSION * most)
        except (ValueError, TypeError, AttributeError) as error:  # the driver is not trusted
            self.end()
            raise SandboxEndedError(f"its answer to {name} is unreadable.") from error

    def _answer(self, seconds: float, most: int = MAX_ANSWER) -> dict[str, Any]:
        """Return the next answer of the driver."""
        assert self._process.stdout is not None and self._process.stderr is not None
        until, stream = time.monotonic() + seconds, self._process.stdout.fileno()
        parts, size = [self._buffer], len(self._buffer)
        while b"\n" not in parts[-1]:
            ready = select.select([stream], [], [], max(0.0, until - time.monotonic()))[0]
            data = os.read(stream, 1 << 20) if ready else b""
            if not data or (size := size + len(data)) > most:
                said = b"it does not answer."
                if ready and select.select([self._process.stderr], [], [], 1.0)[0]:
                    said = os.read(self._process.stderr.fileno(), 2000) or b"it has ended."
                self.end()
                raise SandboxEndedError(said.decode(errors="replace").strip())
            parts.append(data)
        line, _, self._buffer = b"".join(parts).partition(b"\n")
        answer = json.loads(line)
        if not isinstance(answer, dict):
            raise ValueError(f"the driver answered {answer!r:.100}")
        return answer


def printable(text: str) -> str:
    """Return text in which each control character but tab and line break is a question mark in a box."""
    return "".join(one if one in "\t\n" or one.isprintable() else "\ufffd" for one in text.replace("\r\n", "\n"))


def _encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _decoded(data: Any) -> bytes:
    return base64.b64decode(str(data))
