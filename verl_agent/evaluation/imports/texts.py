"""JSON texts of files and folders that other programs have written."""

import json
import struct
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl_agent.errors import ConfigError

ZSTD, LOCAL_HEADER = 93, 30
"""Number of the compression, and bytes of a member's header, in the format of zip files."""


@dataclass(frozen=True, slots=True)
class Found:
    """One JSON text of a source.

    Attributes:
        source: file, and its line or its member, for messages.
        text: the text, or its decoded value.
        beside: further JSON text about it, Harbor's `result.json`; empty without one.
        torn: True if the file ends inside of it.
    """

    source: str
    text: Any
    beside: bytes = b""
    torn: bool = False


def lines_of(path: Path) -> Iterator[Found]:
    """Yield the lines of a file of JSON lines."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                yield Found(f"{path.name}:{number}", line, torn=not line.endswith(b"\n"))


def atif_of(path: Path) -> Iterator[Found]:
    """Yield the trajectories of a file, of a file of JSON lines, or of a folder of Harbor with their results."""
    for file in sorted(path.rglob("trajectory*.json")) if path.is_dir() else [path]:
        if file.suffix == ".jsonl":
            yield from lines_of(file)
            continue
        result = file.parent.parent / "result.json"  # of a trial, whose agent/ has the trajectory
        beside = result.read_bytes() if result.is_file() else b""
        yield Found(str(file.relative_to(path) if path.is_dir() else file.name), file.read_bytes(), beside, torn=True)


def samples_of(path: Path) -> Iterator[Found]:
    """Yield the samples of a log of Inspect, or of the logs in a folder.

    Raises:
        ConfigError: a file is no log, is damaged, or is compressed in a way that this Python cannot read.
    """
    for file in sorted([*path.rglob("*.eval"), *path.rglob("*.json")]) if path.is_dir() else [path]:
        try:
            if file.suffix == ".json":
                log = json.loads(file.read_bytes())
                for number, sample in enumerate(log["samples"] or (), start=1):
                    yield Found(f"{file.name}, sample {number}", sample)
                continue
            with zipfile.ZipFile(file) as archive:
                for member in archive.infolist():
                    if member.filename.startswith("samples/"):
                        yield Found(f"{file.name}, {member.filename}", _content(archive, member))
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"{file} is compressed with zstd, which needs the package {error.name}. Install it: "
                "pip install 'verl-agent[eval]'"
            ) from error
        except (zipfile.BadZipFile, OSError, ValueError, KeyError, TypeError, NotImplementedError) as error:
            raise ConfigError(
                f"{file} cannot be read as a log of Inspect: {error!r:.200}. If it is cut off, write it anew: "
                "inspect log convert --to eval --output-dir FOLDER FILE"
            ) from error


def _content(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> bytes:
    """Return the content of a member, which Inspect compresses with zstd; `zipfile` reads that from Python 3.14 on."""
    if member.compress_type != ZSTD:
        return archive.read(member)
    import pyarrow

    with open(str(archive.filename), "rb") as file:
        file.seek(member.header_offset + LOCAL_HEADER - 4)
        file.seek(sum(struct.unpack("<HH", file.read(4))), 1)  # name and extra fields
        packed = pyarrow.BufferReader(file.read(member.compress_size))
    content: bytes = pyarrow.CompressedInputStream(packed, "zstd").read()
    if zlib.crc32(content) != member.CRC:
        raise zipfile.BadZipFile(f"{member.filename} is damaged")
    return content
