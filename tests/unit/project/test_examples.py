"""The example programs run as they are."""

import subprocess
import sys

import pytest

from tests import ROOT
from tests.support.episodes import talk
from verl_agent.trace.record_files import EpisodeWriter


def run(program: str, *arguments: str, keyboard: str = "") -> str:
    """Run one example and return what it prints."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / program), *arguments],
        input=keyboard,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_an_episode_is_played_from_the_keyboard():
    said = run("play_by_hand.py", "guess_number", keyboard="25\n" * 10)
    assert "Guess a whole number from 1 to" in said
    assert "The episode ended: turn_limit" in said or "success: True" in said


def test_a_scripted_policy_solves_the_whole_split():
    assert "success: 17 of 17" in run("scripted_policy.py")


def test_records_become_a_table_by_purpose_and_step(tmp_path):
    with EpisodeWriter(tmp_path / "episodes.jsonl") as writer:
        writer.write(talk("a b", reward=1.0, task="1", purpose="validation"))
        writer.write(talk("a b c", reward=0.0, task="2", purpose="validation"))
        writer.write(talk("a", reward=0.0, task="1", purpose="train"))
        writer.write({**talk("a b", reward=1.0, task="1", purpose="train"), "step": 1})
    printed = [line.split() for line in run("records_table.py", str(tmp_path)).splitlines()]
    assert printed == [
        ["purpose", "step", "category", "episodes", "success", "turns"],
        ["train", "0", "all", "1", "0.0", "1.0"],
        ["train", "1", "all", "1", "1.0", "2.0"],
        ["validation", "0", "all", "2", "0.5", "2.5"],
    ]


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["records_table.py"], "usage: python examples/records_table.py RUN"),
        (["records_table.py", "/none"], "error: No episode records at '/none': no such file or folder."),
        (["play_by_hand.py", "guess_numbr"], "Did you mean 'guess_number'?"),
        (["play_by_hand.py", "a", "b"], "usage: python examples/play_by_hand.py"),
        (["play_by_hand.py"], "error: policy failed: EOFError"),
    ],
)
def test_an_example_explains_bad_input_without_a_traceback(command, message):
    program = str(ROOT / "examples" / command[0])
    done = subprocess.run(
        [sys.executable, program, *command[1:]], input="", capture_output=True, text=True, check=False
    )
    assert done.returncode == 1 and message in done.stderr and "Traceback" not in done.stderr


def test_every_example_is_listed():
    listed = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
    assert [
        path.name for path in (ROOT / "examples").glob("*.*") if path.name not in listed and path.suffix != ".md"
    ] == []
