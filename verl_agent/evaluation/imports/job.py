"""Import of a file into a folder of records: one episode at a time, refusals by line and reason, all or nothing."""

import hashlib
import json
import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from verl_agent.envs.call_formats import CALL_FORMATS
from verl_agent.envs.strict_json import check_value, read_json
from verl_agent.errors import ConfigError, did_you_mean
from verl_agent.evaluation.imports.conversation import ImportSettings, SourceEpisode, episode_record
from verl_agent.evaluation.imports.formats import FORMATS
from verl_agent.evaluation.imports.texts import Found, foreign_encoding
from verl_agent.evaluation.imports.values import RefusedError, shown
from verl_agent.trace.record import EpisodeRecord
from verl_agent.types import StopReason
from verl_agent.visible import one_line

RECORDS, REFUSED = "episodes.jsonl", "refused.txt"


@dataclass(slots=True)
class Imported:
    """Result of an import.

    Attributes:
        episodes: number of records.
        unrated: number of them without a return.
        undecided: number of unrated ones whose source has several scores, none of which was chosen.
        choices: names of these scores.
        refused: number of refused episodes by reason.
        left_out: number of values by their field that a record cannot hold.
    """

    episodes: int = 0
    unrated: int = 0
    undecided: int = 0
    choices: set[str] = field(default_factory=set)
    refused: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)


def import_records(path: Path, name: str, into: Path, settings: ImportSettings) -> Imported:
    """Write the episodes of a file of another program to `episodes.jsonl` in a folder, and refusals to `refused.txt`.

    Raises:
        ConfigError: a setting is not allowed, the folder has records, the file cannot be read, or it has no episode
            that can be a record. Nothing is left of an import that fails.
    """
    _check(path, name, into, settings)
    drafts = [into / f".{one}.part" for one in (RECORDS, REFUSED)]
    found, samples = Imported(), Counter[bytes]()
    try:
        into.mkdir(parents=True, exist_ok=True)
        with drafts[0].open("w", encoding="utf-8") as records, drafts[1].open("w", encoding="utf-8") as refused:
            for text in FORMATS[name][0](path):
                if text.left_out:
                    found.left_out[text.left_out] += 1
                    continue
                try:
                    records.write(json.dumps(_record(text, name, settings, found, samples)) + "\n")
                except RefusedError as error:
                    found.refused[error.kind] += 1
                    refused.write(one_line(f"{text.source}: {error}") + "\n")
        if not found.episodes:
            first = drafts[1].read_text(encoding="utf-8").partition("\n")[0]
            first = first or ", ".join(f"left out is {one}" for one in found.left_out) or "it is empty"
            advice = "" if "set --as" in first else " If its format is another one, set --as."
            raise ConfigError(f"{path} has no episode of the format {name!r}: {first}.{advice}")
        os.replace(drafts[0], into / RECORDS)
        if found.refused:
            os.replace(drafts[1], into / REFUSED)
    except OSError as error:
        raise ConfigError(
            f"the import of {path} into {into} failed: {error}. Set --into to a folder with space that you may write."
        ) from error
    finally:
        if into.is_dir():
            for draft in drafts:
                draft.unlink(missing_ok=True)
    return found


def _record(
    text: Found, name: str, settings: ImportSettings, found: Imported, samples: Counter[bytes]
) -> EpisodeRecord:
    """Return the record of one JSON text and count it.

    Args:
        samples: number of records of each task so far, by a checksum of 16 bytes: 100 bytes of memory a task.

    Raises:
        RefusedError: it is no JSON, or no episode.
    """
    if text.refused is not None:
        raise text.refused
    value = _decoded(text)
    if not isinstance(value, dict):
        raise RefusedError("a value that is no object", f"{shown(value)}. Write one object a line: jq -c '.[]' FILE")
    try:
        read = FORMATS[name][1](value, text.beside, settings)
        record = episode_record(read, settings) if isinstance(read, SourceEpisode) else read
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        # boundary: the value has been written by another program, and may have any form
        raise RefusedError("an episode of another format", f"a field has not the form of {name!r}") from error
    except ConfigError as error:  # of an exported record
        raise RefusedError("an episode of another format", str(error)) from error
    if record["env"] != settings.env:
        raise RefusedError("an episode of another environment", f"pass --env {record['env']}")
    if isinstance(read, SourceEpisode):
        task = hashlib.blake2b(record["task"].encode(), digest_size=16).digest()
        record["sample"] = samples[task]
        samples[task] += 1
        found.left_out.update(read.left_out)
        if record["stop"] == StopReason.UNRATED:
            found.undecided += bool(read.choices)
            found.choices.update(read.choices)
    found.episodes += 1
    found.unrated += record["stop"] == StopReason.UNRATED
    return record


def _decoded(text: Found) -> Any:
    """Return the value of a JSON text, or a value that is decoded already."""
    try:
        if isinstance(text.text, bytes):
            return read_json(text.text.decode("utf-8-sig"))
        check_value(text.text)
        return text.text
    except ValueError as error:
        problem = foreign_encoding(text.text) if isinstance(text.text, bytes) else ""
        if isinstance(error, UnicodeDecodeError) and "end of data" not in error.reason:
            problem = problem or f"{error.reason}. Convert it: iconv -f LATIN1 -t UTF-8 FILE > NEW"
        if problem:
            raise RefusedError("no UTF-8", problem) from error
        refusal = "the end is missing: the file is cut off" if text.torn else "no JSON"
        raise RefusedError(refusal, str(error)) from error


def _check(path: Path, name: str, into: Path, settings: ImportSettings) -> None:
    if name not in FORMATS:
        raise ConfigError(f"--as {name}: this is no format. {did_you_mean(name, FORMATS)}")
    if settings.score and name == "messages":
        raise ConfigError(
            f"--score {settings.score} would have no effect: a line of messages has one reward. Remove it."
        )
    if settings.calls not in CALL_FORMATS:
        raise ConfigError(f"--calls {settings.calls}: this is no format. {did_you_mean(settings.calls, CALL_FORMATS)}")
    if not settings.env.strip():
        raise ConfigError("--env is empty. Set it to the name of the environment that the records get.")
    if not path.exists():
        raise ConfigError(f"{path} does not exist. Correct the path.")
    if path.is_dir() and name not in ("atif", "inspect"):
        raise ConfigError(f"{path} is a folder, and --as {name} reads one file of JSON lines. Name the file.")
    if (into / RECORDS).exists():
        raise ConfigError(f"{into / RECORDS} exists. Choose another --into, or remove the folder.")
    if not -1e300 < settings.lowest < settings.highest < 1e300 or settings.highest <= 0:
        given = f"{settings.lowest:g}..{settings.highest:g}"
        raise ConfigError(f"--rewards {given} is not allowed. Allowed: LOW..HIGH with LOW < HIGH and HIGH > 0.")
    if settings.reward is not None and not settings.lowest <= settings.reward <= settings.highest:
        given = f"{settings.lowest:g}..{settings.highest:g}"
        raise ConfigError(f"--reward {settings.reward:g} is outside of --rewards {given}. Widen the range.")
