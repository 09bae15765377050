"""A record holds the whole episode, survives a killed writer, and is refused rather than misread."""

import json
import logging
from datetime import UTC, datetime

import pytest

from verl_agent.errors import ConfigError
from verl_agent.trace.record import EpisodeMeta, EpisodeWriter, episode_of, read_records, to_record
from verl_agent.types import Episode, Message, Reply, StepResult, StopReason, TaskItem, Turn

STARTED = datetime(2025, 5, 4, 12, 30, 0, 125000, tzinfo=UTC)
ORIGIN = EpisodeMeta("train", "train", 7, "group-a", 2, STARTED, seconds=4.5, attempt=2, model="qwen")


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
            writer.write(to_record(episode(task), ORIGIN))


def tasks_in(paths):
    return [record["task"] for record in read_records(paths)]


def test_an_episode_and_its_origin_come_back_as_they_were(tmp_path):
    write(tmp_path / "a.jsonl", "3")
    (record,) = read_records(tmp_path / "a.jsonl")
    assert episode_of(record) == episode()
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


def test_the_outcome_is_in_the_record_itself():
    record = to_record(episode(), ORIGIN)
    assert (record["reward"], record["success"], record["stop"]) == (0.25, True, "turn_tokens")
    assert (record["env"], record["step"], record["group"], record["sample"]) == ("guess_number", 7, "group-a", 2)


def test_a_lone_surrogate_in_a_reply_can_be_written(tmp_path):
    broken = episode()
    broken.messages[-1]["content"] = "\ud83d"
    with EpisodeWriter(tmp_path / "a.jsonl") as writer:
        writer.write(to_record(broken, ORIGIN))
    (record,) = read_records(tmp_path / "a.jsonl")
    assert record["messages"][-1]["content"] == "\ud83d"


def test_a_line_is_on_disk_before_the_writer_is_closed(tmp_path):
    writer = EpisodeWriter(tmp_path / "deep" / "a.jsonl")
    writer.write(to_record(episode("1"), ORIGIN))
    assert tasks_in(tmp_path) == ["1"]
    writer.close()


def test_a_folder_is_read_in_the_order_of_names(tmp_path):
    write(tmp_path / "b.jsonl", "2", "3")
    write(tmp_path / "a" / "x.jsonl", "1")
    (tmp_path / "note.txt").write_text("not a record")
    assert tasks_in(tmp_path) == ["1", "2", "3"]
    assert tasks_in([tmp_path / "b.jsonl", tmp_path / "a"]) == ["2", "3", "1"]


def test_the_folder_of_a_run_stands_for_its_episodes(tmp_path):
    """Its metrics are lines of JSON, too, and no episodes."""
    for name in ("episodes", "metrics"):
        (tmp_path / name).mkdir()
    write(tmp_path / "episodes" / "a.jsonl", "1")
    (tmp_path / "metrics" / "a.jsonl").write_text('{"step": 1, "data": {}}\n')
    assert tasks_in(tmp_path) == ["1"]


def test_a_torn_last_line_is_left_out_with_a_warning(tmp_path, caplog):
    path = tmp_path / "a.jsonl"
    write(path, "1", "2")
    path.write_bytes(path.read_bytes()[:-30])
    with caplog.at_level(logging.WARNING):
        assert tasks_in(path) == ["1"]
    assert "a.jsonl:2" in caplog.text


@pytest.mark.parametrize("cut", [1, 30])
def test_writing_goes_on_after_a_torn_line(tmp_path, cut):
    path = tmp_path / "a.jsonl"
    write(path, "1", "2")
    path.write_bytes(path.read_bytes()[:-cut])
    write(path, "3")
    assert tasks_in(path) == ["1", "3"]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{torn\n", "not JSON"),
        ('{"task": "1"}\n', "no version number"),
        ("[1]\n", "no version number"),
        (json.dumps({"version": 99}) + "\n", "version 99"),
    ],
)
def test_a_line_that_cannot_be_read_is_named(tmp_path, line, reason):
    path = tmp_path / "a.jsonl"
    write(path, "1")
    path.write_text(path.read_text() + line)
    with pytest.raises(ConfigError, match=rf"a\.jsonl:2: .*{reason}"):
        tasks_in(path)


def test_a_missing_path_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match="no such file"):
        tasks_in(tmp_path / "none")
