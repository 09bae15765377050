"""First error in the output of a process, which explains its end better than the last one does."""

import logging
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

PREFIX = re.compile(r"(\(([\w:.' ]+ pid=\d+[^)]*|raylet)\) )*((ERROR|WARNING|INFO|CRITICAL) [\d :,.-]+\[[^\]]+\] ?)?")
"""What Ray and vLLM write in front of each line: the process, the level and the time."""
COLOUR = re.compile(r"\x1b\[[\d;]*m")
TRACEBACK = "Traceback (most recent call last):"
LAST_LINE = re.compile(r"[\w.]*(Error|Exception|Exit|Interrupt|Timeout|Died)\b(: |$)")
"""Line that ends a traceback: class and message of the exception."""
MESSAGE_END = re.compile(
    r"Traceback|The above exception|During handling|Set TORCH|You can suppress|\[.*\]$|/.*Warning: |\(.*pid=\d+"
    r"|\d{4}-\d\d-\d\d "
)
"""Line that no longer belongs to the message of an exception."""
ALONE = re.compile(
    r"^(terminate called|Fatal Python error|\*\*\* SIG\w+ received|bash: |sh: \d)|Failed to import from|fatal error: |"
    r"error while loading shared libraries|No space left on device|Address already in use| Check failed: |"
    r"have not registered within the timeout"
)
"""Errors without a traceback: of the linker, the compiler, a shell, vLLM and Ray."""
MAX_LINES = 20
MAX_CHARS = 300
"""Most characters of a quoted line; a compiler's command has thousands."""
MAX_BYTES = 4 << 20
"""Most bytes that are read of a file, from its beginning."""


def first_error(text: str) -> str:
    """Return the message of the first error in the output of a process; "" without one."""
    lines = [PREFIX.sub("", COLOUR.sub("", line), count=1).rstrip() for line in text.splitlines()]
    for number, line in enumerate(lines):
        if ALONE.search(line):
            return line[:MAX_CHARS]
        if line.endswith(TRACEBACK):
            last = next((at for at in range(number + 1, len(lines)) if LAST_LINE.match(lines[at])), None)
            if last is not None:
                return "\n".join(_message(lines[last:]))
    return ""


def _message(lines: list[str]) -> list[str]:
    """Return the lines of an exception's message, with the end of a long one, where a compiler names its error."""
    kept = lines[:1]
    for line in lines[1:]:
        if MESSAGE_END.match(line):
            break
        kept += [line] if line else []
    if len(kept) > MAX_LINES:
        kept = [*kept[:2], "...", *kept[3 - MAX_LINES :]]
    return [line if len(line) <= MAX_CHARS else f"{line[:MAX_CHARS]}…" for line in kept]


def first_error_in(files: Iterable[Path]) -> str:
    """Return the first error in files with the output of one process; "" without one."""
    return next(filter(None, map(first_error, read_beginnings(files))), "")


def read_beginnings(files: Iterable[Path]) -> Iterator[str]:
    """Yield the first `MAX_BYTES` of each file that can be read."""
    for file in files:
        try:
            with file.open(encoding="utf-8", errors="replace") as stream:
                yield stream.read(MAX_BYTES)
        except OSError:  # removed with the session of Ray
            continue


class OneTraceback(logging.Filter):
    """Filter that keeps the traceback of the first of equal errors, and then their number each time it doubles.

    Errors are equal if they have the same class, and the same last line apart from digits.
    """

    def __init__(self) -> None:
        super().__init__()
        self._numbers: Counter[tuple[str, str]] = Counter()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return False for a record that is left out."""
        error = record.exc_info[1] if record.exc_info else None
        if error is None:
            return True
        last = (str(error).strip().splitlines() or [""])[-1]
        kind = (type(error).__name__, re.sub(r"\d+", "0", last))
        self._numbers[kind] += 1
        number = self._numbers[kind]
        if number > 1:
            record.msg, record.args = "%s: the same error as before, %d times by now", (kind[0], number)
            record.exc_info = record.exc_text = None
        return number & (number - 1) == 0
