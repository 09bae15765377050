"""Lines of a file of records as rows of the index. A process of its own parses long files, beside the writing of rows.

    python -m verl_agent.viewer.parsing FILE OFFSET

writes parts of the lines to its output. It ends when nobody reads them.
"""

import json
import marshal
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from verl_agent.errors import ConfigError
from verl_agent.evaluation.what_if.recorded import fingerprint
from verl_agent.trace.behaviors import behavior_turns
from verl_agent.trace.record import EpisodeRecord, parse_line
from verl_agent.viewer.tables import row_of, searched_text, storable

LONG = 4_000_000
"""Bytes from which a process is worth its start. Less are parsed in 0.1 s, in which nothing else runs."""
_AT_ONCE = 50
"""Lines that the process writes at once."""
PART = 50
"""Turns of one part of an episode, see `verl_agent.viewer.parts`."""
_SEPARATORS = re.compile(r"[ \t\r\n,:]*")

Head = tuple[str, str, list[tuple[int, int, str]]]
"""Fingerprint of a long episode; its record as JSON without turns and without messages after the prompt; and for each
part the offset in the line, the length in bytes, and as JSON the turns of the part that show each behavior."""


class BadLine(NamedTuple):
    """Line that is not a valid record.

    Attributes:
        offset: position of the line in bytes.
    """

    file: Path
    offset: int
    message: str


class Line(NamedTuple):
    """One complete line of a file.

    Attributes:
        offset: position in bytes.
        row: values of `verl_agent.viewer.tables.COLUMNS`; None if the line is not a valid record.
        text: words of the record, or the reason why it is invalid.
        head: parts of an episode of more than `PART` turns; None for others.
    """

    offset: int
    length: int
    row: list[Any] | None
    text: str
    step: tuple[str, int]
    head: Head | None = None


def read_lines(path: Path, offset: int, long: int = LONG) -> Iterator[Line]:
    """Yield the complete lines of a file from a position on, up to the end that it has now.

    Args:
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
        head = head_of(line, record) if len(record["turns"]) > PART else None
        return Line(offset, len(line), row_of(record), searched_text(record), (record["purpose"], record["step"]), head)
    except (ValueError, RecursionError, ConfigError) as error:
        return Line(offset, len(line), None, str(storable(str(error))), ("", 0))


def head_of(line: bytes, record: EpisodeRecord) -> Head:
    """Return the parts of a long episode.

    Raises:
        ValueError: the line has another list of turns than the record.
    """
    places = _places_of_turns(line)
    if len(places) != len(record["turns"]):
        raise ValueError("the record has the field turns twice.")
    head = {**record, "turns": [], "messages": record["messages"][: record["prompt_length"]]}
    behaviors: list[dict[str, list[int]]] = [{} for _ in range(0, len(places), PART)]
    for name, turns in behavior_turns(record).items():
        for turn in turns:
            behaviors[turn // PART].setdefault(name, []).append(turn % PART)
    parts = []
    for number, shown in enumerate(behaviors):
        (start, _), *_, (_, end) = [*places[number * PART : (number + 1) * PART]] * 2
        parts.append((start, end - start, json.dumps(shown)))
    return fingerprint(line), json.dumps(head), parts


def _places_of_turns(line: bytes) -> list[tuple[int, int]]:
    """Return start and end of each turn in a line of JSON, in bytes."""
    text, decode = line.decode("latin-1"), json.JSONDecoder().raw_decode  # one character for each byte
    places: list[tuple[int, int]] = []

    def skip(at: int) -> int:
        found = _SEPARATORS.match(text, at)
        assert found is not None
        return found.end()

    at = skip(text.index("{") + 1)
    while text[at] != "}":
        name, at = decode(text, at)
        at = skip(at)
        if name == "turns":
            at = skip(at + 1)
            while text[at] != "]":
                end = decode(text, at)[1]
                places.append((at, end))
                at = skip(end)
            at = skip(at + 1)
        else:
            at = skip(decode(text, at)[1])
    return places


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
    os.nice(10)  # pages and the run itself go first
    lines = _parse(Path(path), int(offset))
    try:
        while part := [tuple(line) for line in islice(lines, _AT_ONCE)]:
            marshal.dump(part, sys.stdout.buffer)
            sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python reports it at its end


if __name__ == "__main__":
    main(*sys.argv[1:])
