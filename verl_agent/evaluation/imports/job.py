"""Import of a file into a folder of records: one episode at a time, refusals by line and reason, all or nothing."""

import json
import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from verl_agent.envs.call_formats import CALL_FORMATS
from verl_agent.envs.strict_json import check_value, read_json
from verl_agent.errors import ConfigError, did_you_mean
from verl_agent.evaluation.imports.conversation import ImportSettings, RefusedError, SourceEpisode, episode_record
from verl_agent.evaluation.imports.formats import FORMATS
from verl_agent.evaluation.imports.texts import Found
from verl_agent.trace.record import EpisodeRecord
from verl_agent.visible import one_line

RECORDS, REFUSED = "episodes.jsonl", "refused.txt"


@dataclass(slots=True)
class Imported:
    """Result of an import.

    Attributes:
        episodes: number of records.
        unrated: number of them without a return.
        refused: number of refused episodes by reason.
        left_out: number of values by their field that a record cannot hold.
    """

    episodes: int = 0
    unrated: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)


def import_records(path: Path, name: str, into: Path, settings: ImportSettings) -> Imported:
    """Write the episodes of a file of another program to `episodes.jsonl` in a folder, and refusals to `refused.txt`.

    Raises:
        ConfigError: a setting is not allowed, the folder has records, the file cannot be read, or it has no episode
            that can be a record. Nothing is left of an import that fails.
    """
    _check(path, name, into, settings)
    into.mkdir(parents=True, exist_ok=True)
    drafts = [into / f".{one}.part" for one in (RECORDS, REFUSED)]
    found = Imported()
    try:
        with drafts[0].open("w", encoding="utf-8") as records, drafts[1].open("w", encoding="utf-8") as refused:
            for text in FORMATS[name].texts(path):
                try:
                    for record in _records(text, name, settings, found):
                        records.write(json.dumps(record) + "\n")
                        found.episodes += 1
                        found.unrated += record["stop"] == "unrated"
                except RefusedError as error:
                    found.refused[error.kind] += 1
                    refused.write(f"{text.source}: {one_line(str(error))}\n")
        if not found.episodes:
            first = drafts[1].read_text(encoding="utf-8").partition("\n")[0] or "it is empty"
            raise ConfigError(
                f"{path} has no episode of the format {name!r}: {first}. If its format is another one, set --as."
            )
        os.replace(drafts[0], into / RECORDS)
        if found.refused:
            os.replace(drafts[1], into / REFUSED)
    except OSError as error:
        raise ConfigError(f"the import of {path} into {into} failed: {error}. Free space, or choose others.") from error
    finally:
        for draft in drafts:
            draft.unlink(missing_ok=True)
    return found


def _records(text: Found, name: str, settings: ImportSettings, found: Imported) -> list[EpisodeRecord]:
    """Return the records of one JSON text.

    Raises:
        RefusedError: it is no JSON, or no episode.
    """
    value = _decoded(text.text, "the end is missing: the file is cut off" if text.torn else "no JSON")
    beside = _decoded(text.beside, "a damaged result.json") if text.beside else {}
    made: list[EpisodeRecord] = []
    try:
        for read in FORMATS[name].read(value, beside, settings):
            if isinstance(read, SourceEpisode):
                read.number = found.episodes + len(made)
                made.append(episode_record(read, settings))
                found.left_out.update(read.left_out)
            elif read["env"] != settings.env:
                raise RefusedError("an episode of another environment", f"pass --env {read['env']}")
            else:
                made.append(read)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field_path = ".".join(map(str, first["loc"]))
        raise RefusedError("a value that its format does not allow", f"{field_path}: {first['msg']}") from error
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, ConfigError) as error:
        # boundary: the value has been written by another program, and may have any form
        raise RefusedError("an episode of another format", f"{type(error).__name__}: {error}") from error
    return made


def _decoded(text: Any, refusal: str) -> Any:
    """Return the value of a JSON text, or a value that is decoded already."""
    try:
        if isinstance(text, bytes):
            return read_json(text.decode())
        check_value(text)
        return text
    except ValueError as error:
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
    if not path.exists() or (path.is_dir() and name not in ("atif", "inspect")):
        raise ConfigError(f"{path} is no file{' or folder' if name in ('atif', 'inspect') else ''}. Correct the path.")
    if (into / RECORDS).exists():
        raise ConfigError(f"{into / RECORDS} exists. Choose another --into, or remove the folder.")
    if not -1e300 < settings.lowest < settings.highest < 1e300 or settings.highest <= 0:
        given = f"{settings.lowest:g}..{settings.highest:g}"
        raise ConfigError(f"--rewards {given} is not allowed. Allowed: LOW..HIGH with LOW < HIGH and HIGH > 0.")
    if settings.reward is not None and not settings.lowest <= settings.reward <= settings.highest:
        given = f"{settings.lowest:g}..{settings.highest:g}"
        raise ConfigError(f"--reward {settings.reward:g} is outside of --rewards {given}. Widen the range.")
