"""Labels of recorded episodes: tags and notes of a person, in one file beside the records."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl_agent.envs.machine.locks import locked
from verl_agent.errors import ConfigError
from verl_agent.trace.provenance import write_json_atomically
from verl_agent.trace.record import EpisodeRecord
from verl_agent.trace.record_files import record_files

LABELS_FILE = "labels.json"
"""File with the labels in the folder of a run or an evaluation. Labels of a single file are in `<file>.labels.json`."""
LABELS_VERSION = 1
"""Version of the file's format."""
KEY_FIELDS = ("purpose", "env", "task", "step", "group", "sample", "attempt", "started_at")
"""Fields of a record that identify an episode; `env` is the label of the environment in the run."""
EpisodeKey = tuple[Any, ...]
"""Values of `KEY_FIELDS`."""
_TAG = re.compile(r"[^\s,;-][^\s,;]*")


@dataclass(frozen=True, slots=True)
class Label:
    """Tags and note of one episode.

    Attributes:
        tags: words without white space, commas or semicolons, and without a leading minus sign.
    """

    tags: tuple[str, ...] = ()
    note: str = ""


def key_of(record: Mapping[str, Any]) -> EpisodeKey:
    """Return the key of a record, or of a row with the columns `KEY_FIELDS`."""
    label = record["env_label"] if "env_label" in record.keys() else record["env"]  # noqa: SIM118 - a row has no `in`
    return tuple(label if name == "env" else record[name] for name in KEY_FIELDS)


def parse_tags(text: str) -> tuple[str, ...]:
    """Return the tags in a text that separates them by white space, commas or semicolons, sorted, each once.

    Raises:
        ConfigError: a tag starts with a minus sign, which excludes a tag in filters.
    """
    tags = sorted({part for part in re.split(r"[\s,;]+", text) if part})
    for tag in tags:
        if not _TAG.fullmatch(tag):
            raise ConfigError(f"tag {tag!r} is not allowed. A tag starts with a letter, a digit or a symbol but `-`.")
    return tuple(tags)


class LabelFile:
    """File of labels, which several processes may change at the same time."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def of(cls, source: Path) -> "LabelFile":
        """Return the file for the labels of a run, an evaluation or a file of records."""
        return cls(source / LABELS_FILE if source.is_dir() else source.with_name(f"{source.name}.{LABELS_FILE}"))

    def read(self) -> dict[EpisodeKey, Label]:
        """Return the labels by episode; empty if the file does not exist.

        Raises:
            ConfigError: the file is not readable, or of a newer version.
        """
        try:
            content = json.loads(self.path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise ConfigError(f"{self.path} is not readable ({error}). Repair or delete it.") from error
        if not isinstance(content, dict) or content.get("version") != LABELS_VERSION:
            version = content.get("version") if isinstance(content, dict) else None
            raise ConfigError(
                f"{self.path} has version {version!r}, but this verl_agent reads {LABELS_VERSION}. Update verl_agent."
            )
        try:
            return {key_of(one): Label(tuple(map(str, one["tags"])), str(one["note"])) for one in content["episodes"]}
        except (KeyError, TypeError) as error:
            raise ConfigError(f"{self.path} has an invalid entry ({error!r}). Repair or delete it.") from error

    def change(self, key: EpisodeKey, label: Label, known: Label | None = None) -> Label:
        """Replace the label of one episode; an empty label removes it.

        Args:
            known: label that was edited; what `label` has in common with it stays as the file has it. None to replace
                tags and note.

        Returns:
            The label that the file has now.

        Raises:
            ConfigError: the file cannot be written.
        """
        try:
            with locked(self.path.parent):
                labels = self.read()
                stored = labels.pop(key, Label())
                if known is not None:
                    tags = stored.tags if label.tags == known.tags else label.tags
                    label = Label(tags, stored.note if label.note == known.note else label.note)
                if label != Label():
                    labels[key] = label
                self._write(labels)
                return label
        except OSError as error:
            raise ConfigError(f"the label is not saved: {self.path} cannot be written ({error}).") from error

    def _write(self, labels: Mapping[EpisodeKey, Label]) -> None:
        episodes = [
            dict(zip(KEY_FIELDS, key, strict=True)) | {"tags": list(label.tags), "note": label.note}
            for key, label in labels.items()
        ]
        write_json_atomically(self.path, {"version": LABELS_VERSION, "episodes": episodes})


def read_labels(paths: Iterable[Path | str]) -> dict[EpisodeKey, Label]:
    """Return the labels of the episodes in files and folders of records.

    Of a folder these are the files beside its files of records and in the folders above them, up to itself. Of a file
    they are its own, and those of the run or evaluation that it belongs to. A file of another program is left out.
    """
    found: dict[EpisodeKey, Label] = {}
    for path in map(Path, paths):
        if path.is_dir():
            files = {path / LABELS_FILE}
            for record_file in record_files(path):
                files.add(LabelFile.of(record_file).path)
                files |= {folder / LABELS_FILE for folder in record_file.parents if folder.is_relative_to(path)}
        else:
            files = {parent / LABELS_FILE for parent in path.resolve().parents[:2]} | {LabelFile.of(path).path}
        for file in sorted(files):
            if not _of_another_program(file):
                found |= LabelFile(file).read()
    return found


def _of_another_program(file: Path) -> bool:
    """Return True for a JSON file that lacks the keys of a label file, such as the class names of a data set."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False  # `LabelFile.read` explains it
    return not isinstance(content, dict) or not {"version", "episodes"} & content.keys()


def keep_labelled(
    records: Sequence[EpisodeRecord], wanted: Sequence[str], labels: Mapping[EpisodeKey, Label], key: str
) -> list[EpisodeRecord]:
    """Return the records that have one of the wanted tags and none of the excluded ones.

    Args:
        wanted: tags; one with a minus sign before it is excluded. Without a wanted tag, all others are kept.
        key: setting that names the tags, for messages.

    Raises:
        ConfigError: no episode has a wanted tag.
    """
    excluded = {tag.removeprefix("-") for tag in wanted if tag.startswith("-")}
    required = {tag for tag in wanted if not tag.startswith("-")}
    tags_of = [set(labels.get(key_of(record), Label()).tags) for record in records]
    counts = Counter(tag for tags in tags_of for tag in tags)
    if missing := required - counts.keys():
        present = ", ".join(f"{tag} ({count})" for tag, count in sorted(counts.items())) or "none"
        raise ConfigError(
            f"{key}={list(wanted)}: no usable episode has the tag {min(missing)!r}. Tags of the episodes: {present}. "
            "Add tags in `verl-agent view`."
        )
    return [
        record
        for record, tags in zip(records, tags_of, strict=True)
        if not tags & excluded and (not required or tags & required)
    ]
