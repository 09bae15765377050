"""Tests of `verl-agent play`: a person alone, with a model's candidates, watching, and options that are refused."""

import asyncio
import io
import os
import pty
from collections.abc import Iterable
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from tests.support.fakes import ITEM, ScriptedPolicy, plain, talk_class
from verl_agent.commands.cli import app
from verl_agent.evaluation.by_hand import NobodyElse, Player
from verl_agent.rollout.candidates import CandidatePolicy, count_actions
from verl_agent.rollout.episode import EpisodeLimits, Policy, play
from verl_agent.runs.terminal_person import TerminalLines
from verl_agent.trace.record_files import read_records
from verl_agent.types import Episode, Reply, StopReason


class Typed(TerminalLines):
    """Lines that a person has typed already."""

    def __init__(self, lines: Iterable[str]) -> None:
        super().__init__()
        self._typed = iter(lines)

    async def read(self) -> str | None:
        return next(self._typed, None)


def game(lines, replies=(), turns: int = 2) -> tuple[Episode, str]:
    """Play `Talk` with typed lines; each entry of `replies` has the samples of one turn."""
    shown = io.StringIO()
    samples = [sample for turn in replies for sample in turn]
    copilot = CandidatePolicy(lambda number: ScriptedPolicy([samples[number]]), plain(), 4) if replies else None
    player = Player(Console(file=shown, width=200), copilot, Typed(lines))
    policy: Policy = copilot or NobodyElse()
    episode = asyncio.run(play(ITEM, talk_class()(turns=turns), plain(), policy, EpisodeLimits(5), player))
    return episode, shown.getvalue()


def test_person_plays_alone_and_the_record_says_so():
    episode, shown = game(["one", "/back", "two"])
    assert [(turn.author, turn.action, turn.proposed) for turn in episode.turns] == [
        ("person", "one", None),
        ("person", "two", None),
    ]
    assert episode.success and "there is no model. Start with --copilot" in shown


def test_candidates_are_shown_with_their_shares_and_one_can_be_picked():
    episode, shown = game(["/1", "/9", "/2"], [["a", "b", "a", "a"], ["c", "c", "d", "d"]])
    assert [(turn.author, turn.action, turn.proposed) for turn in episode.turns] == [
        ("policy", "a", None),
        ("person", "d", "c"),
    ]
    assert "/1   75%  a" in shown and "/2   25%  b" in shown
    assert "there is no candidate 9. Allowed: 1 to 2." in shown


def test_closed_terminal_ends_the_episode():
    episode, _ = game(["one"])
    assert (episode.stop, episode.error) == (StopReason.OPERATOR, "the terminal was closed.")


def test_samples_without_an_action_count_towards_the_shares_and_are_no_candidates():
    replies = [Reply("a"), Reply("", truncated_by=StopReason.TURN_TOKENS, tokens=3), Reply("a"), Reply("b")]
    assert [(one.action, one.share) for one in count_actions(plain(), replies)] == [("a", 0.5), ("b", 0.25)]


def test_text_typed_before_a_question_does_not_answer_it():
    ours, theirs = pty.openpty()

    async def ask() -> str | None:
        os.write(ours, b"too early\n")
        await asyncio.sleep(0.05)
        reading = asyncio.create_task(TerminalLines(theirs).read())
        await asyncio.sleep(0.05)
        os.write(ours, b"/approve\n")
        return await asyncio.wait_for(reading, 5)

    try:
        assert asyncio.run(ask()) == "/approve"
    finally:
        os.close(ours)
        os.close(theirs)


def test_watching_needs_no_terminal_and_records_the_model(tmp_path: Path):
    options = ["play", "guess_number", "--split", "small_test", "--copilot", "oracle", "--watch", "--into"]
    result = CliRunner().invoke(app, [*options, str(tmp_path)])
    assert result.exit_code == 0, result.output
    (record,) = read_records(tmp_path / "episodes.jsonl")
    assert record["success"] and not any("review" in turn for turn in record["turns"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["guess_number"], "the standard input is no terminal"),
        (["guess_number", "--copilot", "oracle"], "has one plan and no candidates"),
        (["guess_number", "--watch"], "Name it with --copilot MODEL"),
        (["gess_number", "--watch", "--copilot", "oracle"], "'gess_number' is not registered"),
        (["guess_number", "--watch", "--copilot", "oracle", "--task", "x"], "--task 'x' is no task of split 'train'"),
        (["guess_number", "--watch", "--copilot", "oracle", "--split", "x"], "no split 'x'"),
        (["guess_number", "--watch", "--copilot", "none"], "'none'"),
    ],
)
def test_option_that_cannot_be_played_is_refused(options, message, tmp_path):
    result = CliRunner().invoke(app, ["play", *options, "--into", str(tmp_path)])
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())
