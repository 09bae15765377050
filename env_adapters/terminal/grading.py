"""Hidden tests on copies of the files that an episode left.

A sandbox runs the agent's programs and reads its CSV and JSON files. What it writes is compared outside, if it is not
much longer than what is expected.
"""

import json
import logging
import math
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from env_adapters.terminal.runtimes import Limits, Runtime, SandboxLayout
from env_adapters.terminal.sandbox import Files, Sandbox, SandboxEndedError

CHECK_S = 5.0
"""Wall-clock seconds of one program of a test."""
MAX_BYTES = 1 << 16
"""Most bytes of the output of one program of a test, and of a file that is compared."""
FREE_BYTES, SPACIOUS = 1000, 8
"""Bytes of an answer beside `SPACIOUS` times those of the expected content: spaces, quotes, line ends."""
PARSE = (
    "import csv, json, sys; kind, path = sys.argv[1:]; file = open(path, encoding='utf-8', newline='')\n"
    "value = json.load(file) if kind == 'json' else [row for row in csv.reader(file) if row]\n"
    "json.dump(value, sys.stdout)"
)
"""Program that reads a CSV or JSON file of the agent and writes its value as JSON."""
CALL = (
    "import importlib.util as u, json, os, sys; path, name = sys.argv[1:]; out = os.dup(1); "
    "os.dup2(os.open(os.devnull, os.O_WRONLY), 1); sys.path.append(os.path.dirname(path)); "
    "spec = u.spec_from_file_location('tested', path); module = u.module_from_spec(spec)\n"
    "spec.loader.exec_module(module)\n"
    "def call(arguments):\n"
    "    try: return getattr(module, name)(*arguments)\n"
    "    except Exception as error: return {'raised': type(error).__name__}\n"
    "os.write(out, json.dumps([call(one) for one in json.load(sys.stdin)]).encode())"
)
"""Program that calls a function of the agent with each list of arguments; it knows no expected result."""
log = logging.getLogger(__name__)


class TestsFailedError(Exception):
    """The hidden tests gave no verdict. The message is the reason; the reward is 0, since the agent may cause it."""

    __test__ = False


class Check(Protocol):
    """One hidden test."""

    def passes(self, files: Files, run: Callable[[Sequence[str], bytes], bytes | None]) -> bool:
        """Return True if the files that the agent left pass.

        Args:
            files: copies of the files.
            run: runs a program in a fresh sandbox with these files, and returns its output.
        """
        ...


@dataclass(frozen=True)
class FileCheck:
    """A file has the expected content.

    Attributes:
        path: name in the working folder.
        expected: text, rows of a CSV file, or JSON value.
        kind: `text` ignores spaces at both ends; `csv` and `json` compare values.
    """

    path: str
    expected: Any
    kind: str = "text"

    def passes(self, files: Files, run: Callable[[Sequence[str], bytes], bytes | None]) -> bool:
        data = files[self.path][1] if self.path in files else None
        if data is None or len(data) > most_bytes(self.expected):
            return False
        if self.kind == "text":
            return same_content(data, self.expected, "text")
        value = run(("python3", "-I", "-S", "-c", PARSE, self.kind, self.path), b"")
        return value is not None and same_content(value, self.expected, "json")


@dataclass(frozen=True)
class RunCheck:
    """A program of the agent writes the expected output.

    Attributes:
        argv: command; relative names are those of the working folder.
        stdin: standard input.
        expected: text or JSON value.
        kind: see `FileCheck`.
    """

    argv: Sequence[str]
    stdin: str
    expected: Any
    kind: str = "text"

    def passes(self, files: Files, run: Callable[[Sequence[str], bytes], bytes | None]) -> bool:
        output = run(self.argv, self.stdin.encode())
        return output is not None and same_content(output, self.expected, self.kind)


def calls(path: str, function: str, cases: Sequence[Sequence[Any]], expected: Sequence[Any]) -> RunCheck:
    """Return the check that a Python function returns the expected values."""
    argv = ("python3", "-I", "-c", CALL, f"/work/{path}", function)
    return RunCheck(argv, json.dumps(cases), json.loads(json.dumps(expected)), "json")


def most_bytes(expected: Any) -> int:
    """Return the size of the longest answer that is compared with an expected content."""
    text = expected if isinstance(expected, str) else json.dumps(expected)
    return min(FREE_BYTES + SPACIOUS * len(text.encode("utf-8", "replace")), MAX_BYTES)


def same_content(data: bytes, expected: Any, kind: str) -> bool:
    """Return True if bytes of the agent say what is expected; any error in them means no.

    Args:
        data: content of a file, or output of a program.
        expected: text or JSON value.
        kind: `text` or `json`.
    """
    if len(data) > most_bytes(expected):
        return False
    try:
        text = data.decode()
        if kind == "json":
            return equal(json.loads(text), expected)
        return text.strip() == str(expected).strip()
    except (ValueError, OverflowError, RecursionError):  # a JSON integer may be too large for a float
        return False


def equal(value: Any, expected: Any) -> bool:
    """Return True if two JSON values are equal; numbers to nine digits, and true is not 1."""
    if isinstance(expected, float) and isinstance(value, int | float) and not isinstance(value, bool):
        return math.isclose(value, expected, rel_tol=1e-9, abs_tol=1e-9)
    if isinstance(expected, list) and isinstance(value, list):
        return len(value) == len(expected) and all(map(equal, value, expected))
    if isinstance(expected, dict) and isinstance(value, dict):
        return value.keys() == expected.keys() and all(equal(value[key], one) for key, one in expected.items())
    return type(value) is type(expected) and bool(value == expected)


@dataclass(frozen=True)
class TerminalTask:
    """One task.

    Attributes:
        instruction: text for the agent.
        files: files at the beginning.
        solution: commands of the oracle.
        checks: hidden tests; all must pass.
    """

    instruction: str
    files: Mapping[str, str]
    solution: Sequence[str]
    checks: Sequence[Check] = field(repr=False)

    layout = SandboxLayout()
    missing = ""

    def begin(self) -> Files:
        return {name: (0o644, text.encode()) for name, text in self.files.items()}

    def grade(self, files: Files, runtime: Runtime, limits: Limits) -> float:
        """Return 1.0 if the files that the agent left pass all checks, else 0.0.

        Raises:
            EnvError: the sandbox of the tests does not start.
        """

        def grade(seconds: float) -> float:
            sandbox: list[Sandbox] = []

            def run(argv: Sequence[str], stdin: bytes) -> bytes | None:
                if not sandbox:
                    sandbox.append(Sandbox(runtime, replace(limits, files=limits.files + len(files)), self.layout))
                    if not sandbox[0].put(files):
                        raise SandboxEndedError("the files do not fit.")
                return sandbox[0].execute(argv, stdin, min(CHECK_S, seconds), MAX_BYTES)

            try:
                return float(all(check.passes(files, run) for check in self.checks))
            finally:
                for one in sandbox:
                    one.end()

        return graded(grade, CHECK_S * len(self.checks))


def graded(grade: Callable[[float], float], seconds: float) -> float:
    """Return the reward of hidden tests: 0 if their sandbox ends twice.

    A first end may be the machine's, which ends sandboxes first when memory is short. A second one counts, since an
    error would let the agent's programs choose which episodes count.

    Args:
        grade: runs the tests in a fresh sandbox within some seconds.
        seconds: most seconds of both tries, so that a second one does not end by the time limit of the call.
    """
    for _ in range(2):
        began = time.monotonic()
        try:
            return grade(seconds)
        except SandboxEndedError as error:
            log.warning("the sandbox of hidden tests has ended: %s", error)
        seconds -= time.monotonic() - began
        if seconds <= 0:
            break
    return 0.0


def write_command(path: str, text: str) -> str:
    """Return the command that writes a file."""
    return f"cat > {shlex.quote(path)} <<'END'\n{text.rstrip()}\nEND"
