"""Commands in a terminal of their own, and texts that act on a terminal which shows them as they are."""

import os
import pty
import re
import select
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

HOSTILE = {
    "escapes": "\x1b[2J\x1b[1;1H\x1b]0;owned\x07\x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\\x1b[31;47m",
    "eight bits": "\x9b2J\x9d0;owned\x9c\x85\x90q",
    "overwriting": "rm -rf /\rls     \x08\x08\x08\x08ok\x7f\x0b\x0c",
    "directions": "a\u202egpj.exe\u2066b\u2069\u200f\u061c",
    "invisible": "l\u200bs\u2060\u00ad\ufeff\u115f\u3164\u2800\u034f",
    "tags": "ls\U000e0072\U000e006d\ufe01\U000e0101",
    "surrogates": "\ud800x\udc80",
    "separators": "one\u2028two\u2029three\x85four\x1c\x1d\x1e",
    "marks": "z" + "\u0301" * 60,
    "markup": "[bold red]ls[/] [link=http://evil]x[/link] :smiley: [/]",
}
"""Texts of an agent or an environment, by kind."""
OWN = re.compile(rb"\x1b\[[0-9;]*m|\x1b\[\?(?:25|2004)[hl]|\x1b\[[0-9]*[ABCDGKJ]|\x1b\[[0-9]*[AK]")
"""Sequences with which rich colors and redraws its own lines."""
ACTING = re.compile(
    rb"(?:[\x00-\x08\x0b-\x1f\x7f]|\xc2[\x80-\x9f\xad]|\xd8\x9c|\xe2\x80[\x8b-\x8f\xa8-\xae]|\xe2\x81[\xa0-\xaf]"
    rb"|\xef\xbb\xbf|\xed[\xa0-\xbf]|\xf3\xa0[\x80-\x87])"
)
"""Bytes in UTF-8 that act on a terminal, or that show nothing."""
TYPED = re.compile(rb"\r+\n|\r+(?=\x1b\[2K)")
"""End of a line as a terminal writes it, and the beginning of one that rich redraws."""


class Terminal:
    """Command in a new terminal, which it controls; end the command by leaving the block."""

    def __init__(self, command: Sequence[str], cwd: Path, size: tuple[int, int] = (24, 80), **variables: str) -> None:
        self._ours, theirs = pty.openpty()
        environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": str(size[1]), "LINES": str(size[0])}
        self.process = subprocess.Popen(
            command,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            cwd=cwd,
            env=environment | variables,
            start_new_session=True,
        )
        os.close(theirs)
        self.output = b""
        """Everything that the command has written."""
        self._read = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self._ours)

    def until(self, text: str, timeout_s: float = 120.0) -> str:
        """Return the output since the last call up to a text."""
        wanted, end = text.encode(), time.monotonic() + timeout_s
        while wanted not in self.output[self._read :]:
            if not self._receive(end):
                raise AssertionError(f"{text!r} was not written: {self.output.decode(errors='replace')}")
        found = self.output.index(wanted, self._read) + len(wanted)
        shown, self._read = self.output[self._read : found], found
        return shown.decode(errors="replace")

    def type(self, line: str) -> None:
        """Type a line."""
        os.write(self._ours, line.encode() + b"\n")

    def wait(self, timeout_s: float = 120.0) -> int:
        """Return the exit code of the command after reading its last output."""
        end = time.monotonic() + timeout_s
        while self._receive(end):
            pass
        return self.process.wait(10)

    def _receive(self, end: float) -> bool:
        if not select.select([self._ours], [], [], max(0.0, end - time.monotonic()))[0]:
            raise AssertionError(f"the command waits: {self.output.decode(errors='replace')}")
        try:
            part = os.read(self._ours, 65536)
        except OSError:  # Linux reports the end of the command so
            return False
        self.output += part
        return bool(part)


def acting_bytes(output: bytes) -> list[bytes]:
    """Return what would act on a terminal, beside the sequences of rich and the ends of lines."""
    return ACTING.findall(OWN.sub(b"", TYPED.sub(b"\n", output)))
