"""JSON texts of files and folders that other programs have written."""

import json
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from io import BufferedReader
from pathlib import Path
from typing import Any

from verl_agent.envs.strict_json import read_json
from verl_agent.errors import ConfigError
from verl_agent.evaluation.imports.values import Json, RefusedError, optional, required

ZSTD, LOCAL_HEADER = 93, 30
"""Number of the compression, and bytes of a member's header, in the format of zip files."""

REPEATED = "sample that an earlier log has, too"
"""Name under which a sample is left out that a retry of Inspect has copied, with its `uuid`, into the next log."""


@dataclass(frozen=True, slots=True)
class Found:
    """One JSON text of a source.

    Attributes:
        source: file, and its line or its member, for messages.
        text: the text, or its decoded value.
        beside: what the source says about it elsewhere: `result` and `step` of Harbor, the line of a trace, or the
            `task` of a log.
        torn: True if the file ends inside of it.
        refused: reason why it can be no record; None if it may be one.
        left_out: name under which it is counted and left out; "" for an episode.
    """

    source: str
    text: Any = b""
    beside: Json = field(default_factory=dict)
    torn: bool = False
    refused: RefusedError | None = None
    left_out: str = ""


def lines_of(path: Path) -> Iterator[Found]:
    """Yield the lines of a file of JSON lines.

    Raises:
        ConfigError: the file is compressed, has another encoding than UTF-8, or ends lines with CR alone.
    """
    with path.open("rb") as file:
        _check_encoding(file, path)
        for number, line in enumerate(file, start=1):
            if line.strip():
                yield Found(f"{path.name}:{number}", line, torn=not line.endswith(b"\n"))


def _check_encoding(file: BufferedReader, path: Path) -> None:
    head = file.peek(1)
    problem = foreign_encoding(head)
    if not problem and b"\r" in head.strip() and b"\n" not in head:
        problem = "line ends of CR alone. Convert it: tr '\\r' '\\n' < FILE > NEW"
    if problem:
        raise ConfigError(f"{path} has {problem}")


def foreign_encoding(head: bytes) -> str:
    """Return the name of an encoding that is not UTF-8, by the first bytes of a file, and the way to convert it."""
    if head.startswith(b"\x1f\x8b"):
        return "the compression gzip. Decompress it: gunzip -c FILE > NEW"
    if head.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\0" in head[:4]:
        return "the encoding UTF-16 or UTF-32. Convert it: iconv -f UTF-16 -t UTF-8 FILE > NEW"
    return ""


def traces_of(path: Path) -> Iterator[Found]:
    """Yield the traces of each line of `traces.jsonl`, or the line itself if it is one trace."""
    for line in lines_of(path):
        try:
            episode = read_json(line.text.decode("utf-8-sig"))
            if not isinstance(episode, dict) or "traces" not in episode:
                yield replace(line, text=episode)
                continue
            traces = optional(episode, "traces", list)
            if not traces:
                errors = [f"{one.get('type')}: {one.get('message')}" for one in optional(episode, "errors", list)]
                raise RefusedError("a line without a trace", "; ".join(errors))
        except ValueError:
            yield line  # the import refuses it, with the reason
            continue
        except RefusedError as error:
            yield replace(line, refused=error)
            continue
        beside = {name: value for name, value in episode.items() if name != "traces"}
        for number, trace in enumerate(traces, start=1):
            yield Found(f"{line.source}, trace {number}" if len(traces) > 1 else line.source, trace, beside)


def samples_of(path: Path) -> Iterator[Found]:
    """Yield the samples of a log of Inspect, or of the logs in a folder, of which each sample counts once.

    Raises:
        ConfigError: a file is no log, is damaged, or is compressed in a way that this Python cannot read.
    """
    known = set[str]()
    for file in sorted([*path.rglob("*.eval"), *path.rglob("*.json")]) if path.is_dir() else [path]:
        samples = 0
        try:
            for sample in _members(file) if file.suffix != ".json" else _listed(file):
                samples += 1
                identity = str(sample.text.get("uuid") or "") if isinstance(sample.text, dict) else ""
                yield replace(sample, left_out=REPEATED) if identity in known else sample
                known |= {identity} - {""}
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"{file} is compressed with zstd, which needs the package {error.name}. Install it: "
                "pip install 'verl-agent[eval]'"
            ) from error
        except (zipfile.BadZipFile, OSError, ValueError, KeyError, NotImplementedError, RefusedError) as error:
            raise ConfigError(
                f"{file} cannot be read as a log of Inspect: {error}. If it is cut off, write it anew: "
                "inspect log convert --to eval --output-dir FOLDER FILE"
            ) from error
        if not samples:
            yield Found(file.name, refused=RefusedError("a log without samples"))


def _listed(file: Path) -> Iterator[Found]:
    log = json.loads(file.read_bytes())
    if isinstance(log, dict) and "eval" not in log:
        required(log, "samples", list)
    for number, sample in enumerate(optional(log, "samples", list), start=1):
        yield Found(f"{file.name}, sample {number}", sample, _eval(log))


def _members(file: Path) -> Iterator[Found]:
    with zipfile.ZipFile(file) as archive:
        members = {member.filename: member for member in archive.infolist()}
        head = members.get("header.json") or members.get("_journal/start.json")
        beside = _eval(json.loads(_content(archive, head))) if head else {}
        for name, member in members.items():
            if name.startswith("samples/"):
                text: Any = _content(archive, member)
                with suppress(ValueError):  # the import refuses it, with the reason
                    text = read_json(text.decode("utf-8-sig"))
                yield Found(f"{file.name}, {name}", text, beside)


def _eval(log: Any) -> Json:
    header = optional(log, "eval", dict)
    return {name: header.get(name) for name in ("task", "task_args")}


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
