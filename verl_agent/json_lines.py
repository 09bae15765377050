"""Files of JSON lines that one process appends to and others read."""

import json
import logging
import mmap
from collections.abc import Iterator
from os import SEEK_END
from pathlib import Path
from typing import Any

from verl_agent.errors import ConfigError

logger = logging.getLogger(__name__)

REPLIES = "replies.jsonl"
"""Name of the file with the replies of an API, which lies beside or below episode records."""


def json_lines(path: Path, start: int = 0) -> Iterator[tuple[int, Any]]:
    """Yield number and value of each line of a file of JSON lines; an unfinished last line is skipped with a warning.

    A byte-order mark, which some editors write, is left out.

    Args:
        start: byte after which the first line begins.

    Raises:
        ConfigError: a line is not JSON in UTF-8.
    """
    with path.open("rb") as lines:
        if start:
            lines.seek(start)
            lines.readline()
        for number, raw in enumerate(lines, start=1):
            try:
                value = json.loads(raw.decode("utf-8" if number > 1 or start else "utf-8-sig"))
            except ValueError as error:
                if not raw.endswith(b"\n"):
                    logger.warning("%s:%d: skipped an unfinished last line", path, number)
                    return
                raise ConfigError(f"{path}:{number}: not JSON ({error}). Remove the line to read the rest.") from error
            yield number, value


def remove_unfinished_line(path: Path) -> None:
    """Remove the end of a file after its last line break, which a killed process left; a whole object is kept."""
    if not path.exists() or path.stat().st_size == 0:
        return
    with path.open("rb+") as file:
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            complete = content.rfind(b"\n") + 1
            last = content[complete:]
        if last and _is_object(last):
            file.seek(0, SEEK_END)
            file.write(b"\n")
        elif last:
            logger.warning("%s: removed an unfinished last line of %d bytes", path, len(last))
            file.truncate(complete)


def _is_object(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False
