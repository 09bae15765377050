"""Test that episodes in play are read from outside of their process, and that nothing is written without a reader."""

import os
import time

from typer.testing import CliRunner

from tests.support.in_play import episode_in_play
from tests.support.waiting import wait_until
from verl_agent.commands.cli import app
from verl_agent.rollout.live import FOLDER, POLL_S, WANTED_S, read_running


def test_the_transcript_so_far_is_read_until_the_episode_ends(tmp_path):
    with episode_in_play(tmp_path) as policy:
        policy.replies.put("good morning")
        wait_until(lambda: [len(one.record["turns"]) for one in read_running(tmp_path)] == [1])
        (one,) = read_running(tmp_path)
        assert (one.number, one.record["step"], one.record["sample"], one.record["task"]) == (1, 7, 2, "1")
        assert one.record["seconds"] > 0
        assert [message["content"] for message in one.record["messages"]] == [
            "Talk.", "Begin.", "good morning", "heard 1"
        ]  # fmt: skip
    wait_until(lambda: not read_running(tmp_path))


def test_the_file_of_a_process_that_was_killed_is_removed(tmp_path):
    (tmp_path / FOLDER).mkdir()
    left = tmp_path / FOLDER / "host-1.json"
    left.write_text("{}")
    os.utime(left, (time.time() - 2 * WANTED_S,) * 2)
    assert read_running(tmp_path) == [] and not left.exists()


def test_nothing_is_written_without_a_reader(tmp_path):
    with episode_in_play(tmp_path):
        time.sleep(3 * POLL_S)  # there is no event to wait for: nothing may happen
        assert not (tmp_path / FOLDER).exists()


def test_a_folder_that_is_missing_has_no_episode_in_play(tmp_path):
    assert read_running(tmp_path / "nowhere") == []


def test_the_command_control_lists_and_prints_episodes_in_play(tmp_path):
    (tmp_path / "episodes").mkdir()
    with episode_in_play(tmp_path / "episodes") as policy:
        policy.replies.put("good \x1b[31mmorning")
        wait_until(lambda: [len(one.record["turns"]) for one in read_running(tmp_path / "episodes")] == [1])
        listed = CliRunner().invoke(app, ["control", str(tmp_path), "read"])
        printed = CliRunner().invoke(app, ["control", str(tmp_path), "read", "1"])
        refused = CliRunner().invoke(app, ["control", str(tmp_path), "read", "9"])
    assert "train" in listed.output and "2 of 3" in listed.output
    assert "--- user\nBegin." in printed.output and "heard 1" in printed.output
    missing = CliRunner().invoke(app, ["control", str(tmp_path / "typo"), "read"])
    assert missing.exit_code == 2 and "is no folder of a run" in missing.output and not (tmp_path / "typo").exists()
    assert "\x1b" not in printed.output and "morning" in printed.output
    assert refused.exit_code == 2 and "Running: 1." in refused.output
