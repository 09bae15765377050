"""Lines of a file of records as rows of the index. A process of its own parses long files, beside the writing of rows.

    python -m verl_agent.viewer.parsing FILE OFFSET

writes parts of the lines to its output. It ends when nobody reads them.
"""

import marshal
import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from verl_agent.errors import ConfigError
from verl_agent.trace.record import parse_line
from verl_agent.viewer.tables import row_of, storable, words_of

LONG = 50_000_000
"""Bytes from which a process is worth its start."""
_PART = 50
"""Lines that the process writes at once."""


class Line(NamedTuple):
    """One complete line of a file.

    Attributes:
        offset: position in bytes.
        length: number of bytes.
        row: values of `verl_agent.viewer.tables.COLUMNS`; None if the line is not a valid record.
        text: words of the record, or the reason why it is invalid.
        step: purpose and training step.
    """

    offset: int
    length: int
    row: list[Any] | None
    text: str
    step: tuple[str, int]


def read_lines(path: Path, offset: int, long: int = LONG) -> Iterator[Line]:
    """Yield the complete lines of a file from a position on, up to the end that it has now.

    Args:
        path: file of records.
        offset: position of a line.
        long: bytes from which another process parses.

    Raises:
        RuntimeError: that process was killed; what it has not parsed may be read again.
    """
    if os.path.getsize(path) - offset < long:
        return _parse(path, offset)
    return _parse_beside(path, offset)


def _parse(path: Path, offset: int) -> Iterator[Line]:
    with path.open("rb") as file:
        file.seek(offset)
        for line in file:
            if not line.endswith(b"\n"):
                return
            yield _parse_line(offset, line)
            offset += len(line)


def _parse_line(offset: int, line: bytes) -> Line:
    try:
        record = parse_line(line)
        return Line(offset, len(line), row_of(record), words_of(record), (record["purpose"], record["step"]))
    except (ValueError, RecursionError, ConfigError) as error:
        return Line(offset, len(line), None, str(storable(str(error))), ("", 0))


def _parse_beside(path: Path, offset: int) -> Iterator[Line]:
    command = [sys.executable, "-m", "verl_agent.viewer.parsing", str(path), str(offset)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        try:
            while True:
                try:
                    part = marshal.load(process.stdout)
                except EOFError as error:
                    if code := process.wait():
                        raise RuntimeError(f"the process that parses {path} ended with exit code {code}.") from error
                    return
                yield from (Line(*values) for values in part)
        finally:
            process.kill()


def main(path: str, offset: str) -> None:
    """Write the lines of a file to the output, in parts."""
    lines = _parse(Path(path), int(offset))
    try:
        while part := [tuple(line) for line in islice(lines, _PART)]:
            marshal.dump(part, sys.stdout.buffer)
            sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python reports it at its end


if __name__ == "__main__":
    main(*sys.argv[1:])
