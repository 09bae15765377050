"""Test labels of episodes: their file, several writers at once, and the choice of episodes to train on by tag."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.episodes import talk
from verl_agent.errors import ConfigError
from verl_agent.trace.labels import Label, LabelFile, key_of, parse_tags, read_labels
from verl_agent.trace.record_files import EpisodeWriter
from verl_agent.training.offline.evolve.rounds import evolve_settings
from verl_agent.training.offline.selection import usable_records


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with EpisodeWriter(tmp_path / "run" / "episodes.jsonl") as writer:
        for task in "123":
            writer.write(talk(task=task, purpose="collection"))
    return tmp_path / "run"


def label(folder: Path, task: str, *tags: str, note: str = "") -> None:
    LabelFile.of(folder).change(key_of(talk(task=task, purpose="collection")), Label(tags, note))


def kept(folder: Path, *labels: str) -> list[str]:
    return [record["task"] for record in usable_records([str(folder)], "episodes.records", labels=labels)]


def test_a_label_is_saved_replaced_and_removed(folder: Path) -> None:
    key = key_of(talk(task="2", purpose="collection"))
    label(folder, "2", "good", note="found the\nkey")
    assert LabelFile.of(folder).read() == {key: Label(("good",), "found the\nkey")}
    label(folder, "2", "bad")
    assert LabelFile.of(folder).read() == {key: Label(("bad",))}
    label(folder, "2")
    assert LabelFile.of(folder).read() == {}


def test_an_edit_of_one_field_keeps_what_another_browser_wrote_into_the_other(folder: Path) -> None:
    file, key, opened = LabelFile.of(folder), key_of(talk(task="2", purpose="collection")), Label(("new",), "look")
    file.change(key, opened)
    assert file.change(key, Label(("good",), "look"), opened) == Label(("good",), "look")
    assert file.change(key, Label(("new",), "seen"), opened) == Label(("good",), "seen")
    assert file.change(key, Label((), "look"), opened) == Label((), "seen")


def test_writers_at_the_same_time_lose_no_label(folder: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda number: label(folder, str(number), "good"), range(40)))
    assert len(LabelFile.of(folder).read()) == 40
    assert [path.name for path in folder.iterdir()] == ["episodes.jsonl", "labels.json"]


def test_labels_are_found_from_the_folder_the_file_and_a_folder_above(folder: Path) -> None:
    label(folder, "1", "good")
    LabelFile.of(folder / "episodes.jsonl").change(key_of(talk(task="2", purpose="collection")), Label(("good",)))
    for path in (folder, folder / "episodes.jsonl", folder.parent):
        assert len(read_labels([path])) == 2


def test_a_label_file_of_another_program_is_left_out(folder: Path) -> None:
    label(folder, "1", "good")
    (folder.parent / "labels.json").write_text('["cat", "dog"]')
    (folder / "checkpoint").mkdir()
    (folder / "checkpoint" / "labels.json").write_text("not JSON; no records lie here")
    assert len(read_labels([folder.parent])) == len(read_labels([folder / "episodes.jsonl"])) == 1


def test_a_broken_label_file_is_refused(folder: Path) -> None:
    (folder / "labels.json").write_text('{"version": 1, "epis')
    with pytest.raises(ConfigError, match="not readable"):
        read_labels([folder])


def test_episodes_are_kept_by_wanted_and_excluded_tags(folder: Path) -> None:
    label(folder, "1", "good")
    label(folder, "2", "good", "lucky")
    assert kept(folder, "good") == ["1", "2"]
    assert kept(folder, "good", "-lucky") == ["1"]
    assert kept(folder, "-lucky") == ["1", "3"]
    assert kept(folder, "-never_used") == ["1", "2", "3"]


def test_a_tag_that_no_episode_has_is_refused_with_the_tags_there(folder: Path) -> None:
    label(folder, "1", "good")
    with pytest.raises(ConfigError, match=r"episodes.labels=\['god'\].*good \(1\)"):
        kept(folder, "god")


def test_rounds_refuse_a_wanted_tag_because_new_episodes_have_none() -> None:
    values = {"explore": [{"recipe": "a", "tasks": "b"}], "learn": "c", "output_dir": "d"}
    assert evolve_settings({**values, "labels": ["-bad"]}).selection(["e"])["labels"] == ["-bad"]
    with pytest.raises(ConfigError, match="such as -good"):
        evolve_settings({**values, "labels": ["good"]})


@pytest.mark.parametrize("content", ["no json", "[]", json.dumps({"version": 9}), '{"version": 1, "episodes": [{}]}'])
def test_an_invalid_or_newer_file_is_refused_and_kept(folder: Path, content: str) -> None:
    (folder / "labels.json").write_text(content)
    with pytest.raises(ConfigError, match=r"labels.json"):
        label(folder, "1", "good")
    assert (folder / "labels.json").read_text() == content


def test_tags_are_words_without_a_leading_minus() -> None:
    assert parse_tags("good, lucky;good  old") == ("good", "lucky", "old")
    with pytest.raises(ConfigError, match="'-bad' is not allowed"):
        parse_tags("-bad")
