"""Test that records hold whole episodes, that files survive a killed writer, and that invalid lines are reported."""

import json
import logging
import math
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from tests.support.episodes import talk
from verl_agent.errors import ConfigError
from verl_agent.trace.frame import make_frame, turn_rows
from verl_agent.trace.record import EpisodeMeta, parse_line, task_key, to_episode, to_record
from verl_agent.trace.record_files import EpisodeWriter, read_records
from verl_agent.types import Episode, Message, Reply, StepResult, StopReason, TaskItem, Turn

STARTED = datetime(2025, 5, 4, 12, 30, 0, 125000, tzinfo=UTC)
META = EpisodeMeta(
    "train", "train", 7, "group-a", 2, STARTED, seconds=4.5, attempt=2, model="qwen", shaped_return=0.125
)


def episode(task: str = "3") -> Episode:
    messages: list[Message] = [
        {"role": "user", "content": "Guess."},
        {"role": "assistant", "content": "Action: 5 — größer?"},
        {"role": "user", "content": "Lower."},
        {"role": "assistant", "content": "I thin"},
    ]
    step = StepResult("Lower.", reward=0.25, info={"invalid_action": 1.0})
    turns = [
        Turn(
            Reply("Action: 5 — größer?", tokens=6, force_closed=True), "5 — größer?", step, generate_s=0.5, env_s=0.25
        ),
        Turn(Reply("I thin", StopReason.TURN_TOKENS, 2), None, None, generate_s=0.5, env_s=0.0),
    ]
    item = TaskItem("guess_number", task, {"target": 3}, category="low")
    return Episode(item, 10, messages, turns, StopReason.TURN_TOKENS, success_reward=0.2, prompt_length=1)


def write(path, *tasks):
    with EpisodeWriter(path) as writer:
        for task in tasks:
            writer.write(to_record(episode(task), META))


def tasks_in(paths):
    return [record["task"] for record in read_records(paths)]


def test_reading_returns_the_written_episode_and_its_meta(tmp_path):
    write(tmp_path / "a.jsonl", "3")
    (record,) = read_records(tmp_path / "a.jsonl")
    assert to_episode(record) == episode()
    assert {name: record[name] for name in ("purpose", "split", "step", "group", "sample", "attempt", "model")} == {
        "purpose": "train",
        "split": "train",
        "step": 7,
        "group": "group-a",
        "sample": 2,
        "attempt": 2,
        "model": "qwen",
    }
    assert (datetime.fromisoformat(record["started_at"]), record["seconds"]) == (STARTED, 4.5)


def test_a_record_states_the_outcome():
    record = to_record(episode(), META)
    assert (record["reward"], record["success"], record["stop"]) == (0.25, True, "turn_tokens")
    assert (record["env"], record["step"], record["group"], record["sample"]) == ("guess_number", 7, "group-a", 2)
    assert (record["shaped_return"], record["version"]) == (0.125, 2)


@pytest.mark.parametrize(
    ("action", "rewritten"), [("<search>a\nb</search>", False), ("<search>a b</search>", True), (None, False)]
)
def test_a_record_marks_actions_that_differ_from_the_reply(action, rewritten):
    turn = Turn(Reply("<search>a\nb</search>"), action, StepResult("found"), 0.0, 0.0)
    record = to_record(Episode(TaskItem("talk", "1"), 1, turns=[turn]), META)
    assert record["turns"][0].get("rewritten", False) is rewritten


def test_a_field_that_this_version_does_not_know_is_kept(tmp_path):
    record = to_record(episode(), META) | {"note": "kept"}
    (tmp_path / "a.jsonl").write_text(json.dumps(record) + "\n")
    assert list(read_records(tmp_path / "a.jsonl")) == [record]


def test_a_lone_surrogate_in_a_reply_survives_writing_and_reading(tmp_path):
    broken = episode()
    broken.messages[-1]["content"] = "\ud83d"
    with EpisodeWriter(tmp_path / "a.jsonl") as writer:
        writer.write(to_record(broken, META))
    (record,) = read_records(tmp_path / "a.jsonl")
    assert record["messages"][-1]["content"] == "\ud83d"


def test_a_line_is_on_disk_before_the_writer_is_closed(tmp_path):
    writer = EpisodeWriter(tmp_path / "deep" / "a.jsonl")
    writer.write(to_record(episode("1"), META))
    assert tasks_in(tmp_path) == ["1"]
    writer.close()


def test_files_of_a_folder_are_read_in_order_of_their_names(tmp_path):
    write(tmp_path / "b.jsonl", "2", "3")
    write(tmp_path / "a" / "x.jsonl", "1")
    (tmp_path / "note.txt").write_text("not a record")
    assert tasks_in(tmp_path) == ["1", "2", "3"]
    assert tasks_in([tmp_path / "b.jsonl", tmp_path / "a"]) == ["2", "3", "1"]


def test_only_the_episodes_of_a_run_folder_are_read(tmp_path):
    """The metrics of a run are lines of JSON, too."""
    for name in ("episodes", "metrics"):
        (tmp_path / name).mkdir()
    write(tmp_path / "episodes" / "a.jsonl", "1")
    (tmp_path / "metrics" / "a.jsonl").write_text('{"step": 1, "data": {}}\n')
    assert tasks_in(tmp_path) == ["1"]


def test_an_unfinished_last_line_is_skipped_with_a_warning(tmp_path, caplog):
    path = tmp_path / "a.jsonl"
    write(path, "1", "2")
    path.write_bytes(path.read_bytes()[:-30])
    with caplog.at_level(logging.WARNING):
        assert tasks_in(path) == ["1"]
    assert "a.jsonl:2" in caplog.text


@pytest.mark.parametrize("removed_bytes", [2, 30])
def test_a_writer_replaces_an_unfinished_last_line(tmp_path, removed_bytes):
    path = tmp_path / "a.jsonl"
    write(path, "1", "2")
    path.write_bytes(path.read_bytes()[:-removed_bytes])
    write(path, "3")
    assert tasks_in(path) == ["1", "3"]


def test_a_writer_keeps_a_whole_last_record_without_a_line_break(tmp_path):
    """Readers count it, so a resumed run must not lose it."""
    path = tmp_path / "a.jsonl"
    write(path, "1", "2")
    path.write_bytes(path.read_bytes()[:-1])
    assert tasks_in(path) == ["1", "2"]
    write(path, "3")
    assert tasks_in(path) == ["1", "2", "3"]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{torn\n", "not JSON"),
        ('{"task": "1"}\n', "no version number"),
        ("[1]\n", "no version number"),
        (json.dumps({"version": 99}) + "\n", "version 99"),
    ],
)
def test_a_line_that_is_not_a_record_is_reported_with_its_number(tmp_path, line, reason):
    path = tmp_path / "a.jsonl"
    write(path, "1")
    path.write_text(path.read_text() + line)
    with pytest.raises(ConfigError, match=rf"a\.jsonl:2: .*{reason}"):
        tasks_in(path)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("reward", "x", r"turns\[1\]\.reward='x' is not allowed\. Allowed: a number\. Remove the line"),
        ("tokens", 2.5, r"turns\[1\]\.tokens=2\.5 is not allowed\. Allowed: a whole number\."),
        ("truncated_by", "budget", r"turns\[1\]\.truncated_by='budget' is not allowed\. Allowed: terminated, .*turn_"),
        ("info", {"invalid": None}, r"turns\[1\]\.info\.invalid=None is not allowed\. Allowed: a number\."),
    ],
)
def test_an_invalid_field_is_reported_with_file_line_and_field(tmp_path, field, value, message):
    record = to_record(episode(), META)
    record["turns"][1][field] = value
    write(tmp_path / "a.jsonl", "1")
    with (tmp_path / "a.jsonl").open("a") as file:
        file.write(json.dumps(record) + "\n")
    with pytest.raises(ConfigError, match=rf"a\.jsonl:2: {message}"):
        tasks_in(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"purpose": "tests"}, r"purpose='tests' is not allowed\. Allowed: train, validation, test, evaluation"),
        ({"messages": [{"role": "bot", "content": ""}]}, r"messages\[0\]\.role='bot' is not allowed\."),
        ({"turns": None}, r"turns=None is not allowed\. Allowed: a list of"),
    ],
)
def test_an_invalid_field_of_the_episode_is_reported(tmp_path, change, message):
    (tmp_path / "a.jsonl").write_text(json.dumps(to_record(episode(), META) | change) + "\n")
    with pytest.raises(ConfigError, match=message):
        tasks_in(tmp_path)


def test_a_missing_field_is_reported(tmp_path):
    record = to_record(episode(), META)
    del record["stop"]
    (tmp_path / "a.jsonl").write_text(json.dumps(record) + "\n")
    with pytest.raises(ConfigError, match=r"a\.jsonl:1: stop is missing\."):
        tasks_in(tmp_path)


def test_a_path_that_does_not_exist_is_reported(tmp_path):
    with pytest.raises(ConfigError, match="no such file"):
        tasks_in(tmp_path / "none")


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [("reward", math.nan, "finite"), ("shaped_return", math.inf, "finite"), ("started_at", "soon", "isoformat")],
)
def test_a_return_that_is_no_number_and_a_start_that_is_no_time_are_refused(field: str, value: object, message: str):
    """Means, orders and charts of all episodes would be lost with one of them."""
    line = json.dumps({**talk(), field: value}).encode()
    with pytest.raises(ConfigError, match=rf"{field}.*{message}"):
        parse_line(line)


def test_the_label_of_an_entry_of_a_mixture_belongs_to_the_record_and_to_the_key_of_its_task():
    plain, named = to_record(episode(), META), to_record(episode(), replace(META, env_label="easy"))
    same = to_record(episode(), replace(META, env_label="guess_number"))
    assert "env_label" not in plain and "env_label" not in same
    assert parse_line(json.dumps(named).encode()) == named
    assert [task_key(one) for one in (plain, named, same)] == [
        ("guess_number", "3"),
        ("easy", "3"),
        ("guess_number", "3"),
    ]
    assert [row["env_label"] for row in make_frame([plain, named]).to_dict("records")] == ["guess_number", "easy"]
    assert {row["env_label"] for row in turn_rows(named)} == {"easy"}
