"""Tests of `verl-agent play`: a person alone, with a model's candidates, watching, and options that are refused."""

import asyncio
import io
import os
import pty
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from tests import ROOT
from tests.support.evaluated_games import recipe
from tests.support.fakes import ITEM, ScriptedPolicy, plain, talk_class
from verl_agent.agents.plain import ReAct
from verl_agent.commands.cli import app
from verl_agent.envs.action_format import LineFormat
from verl_agent.envs.registry import make_env
from verl_agent.errors import ConfigError
from verl_agent.evaluation.by_hand import ending
from verl_agent.evaluation.job import prepare_evaluation
from verl_agent.oversight.approval import Approval
from verl_agent.oversight.base import NobodyElse
from verl_agent.oversight.rules import Rule
from verl_agent.oversight.terminal import TerminalLines, TerminalPerson
from verl_agent.rollout.candidates import CandidatePolicy, count_actions
from verl_agent.rollout.episode import EpisodeLimits, play_episode
from verl_agent.rollout.policy import Policy
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
    player = TerminalPerson(Console(file=shown, width=200), Typed(lines), full=True)
    policy: Policy = copilot or NobodyElse()
    episode = asyncio.run(play_episode(ITEM, talk_class()(turns=turns), plain(), policy, EpisodeLimits(5), player))
    return episode, shown.getvalue()


def test_person_plays_alone_and_the_record_says_so():
    episode, shown = game(["one", "/back", "/approve", "/help", "two"])
    assert [(turn.reply.author, turn.action, turn.reply.proposed) for turn in episode.turns] == [
        ("person", "one", None),
        ("person", "two", None),
    ]
    assert episode.success and "there is no model. Start with --copilot" in shown
    assert "there is no proposal. Allowed: an action, /end." in shown
    assert shown.count("/end [reason] ends the episode") == 3, "two questions and /help"
    assert not [name for name in ("/reject", "/take", "/back") if name in shown], "nobody else plays"


def test_end_is_told_without_what_a_question_has_shown():
    episode, _ = game(["one", "/end tired"])
    assert ending(episode) == "\nThe episode ended: operator (tired). Reward 0, success: False."
    solved, _ = game(["one", "two"])
    last = solved.messages[-1]["content"]
    assert ending(solved) == f"\n{last}\n\nThe episode ended: terminated. Reward 1, success: True."


@pytest.mark.parametrize("signal", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_interrupted_game_leaves_no_empty_record_and_says_so(tmp_path: Path, signal: str) -> None:
    lines = ("import os, signal", "def reply(messages):", f"    os.kill(os.getpid(), signal.{signal})", "    return ''")
    (tmp_path / "interrupting.py").write_text("\n".join(lines))
    command = [sys.executable, "-c", "from verl_agent.commands.cli import app; app()", "play", "guess_number"]
    command += ["--copilot", "python:interrupting:reply", "--watch", "--into", "out"]
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{tmp_path}"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 130, done.stderr
    assert "Stopped. The episode was not recorded" in done.stdout
    assert (tmp_path / "out" / "game.json").is_file() and not (tmp_path / "out" / "episodes.jsonl").exists()


def test_question_of_a_rule_tells_its_time_limit():
    shown = io.StringIO()
    person = TerminalPerson(Console(file=shown, width=200), Typed(["/approve", "/approve"]))
    rules = [Rule(["*"], text="a", by="human", timeout_s=4), Rule(["*"], by="human")]
    session = talk_class()()
    approval = Approval(rules, session.describe_action, person)
    asyncio.run(play_episode(ITEM, session, plain(), ScriptedPolicy("ab"), EpisodeLimits(2), approval))
    assert shown.getvalue().count("Without an answer within 4 s the action is rejected.") == 1


def test_candidates_are_shown_with_their_shares_and_one_can_be_picked():
    episode, shown = game(["/1", "/9", "/2"], [["a", "b", "a", "a"], ["c", "c", "d", "d"]])
    assert [(turn.reply.author, turn.action, turn.reply.proposed) for turn in episode.turns] == [
        ("policy", "a", None),
        ("policy", "d", "c"),
    ]
    assert [turn.reply.review.decision for turn in episode.turns if turn.reply.review] == ["approved", "edited"]
    assert "/1   75%  a" in shown and "/2   25%  b" in shown
    assert "there is no candidate 9. Allowed: 1 to 2." in shown


def test_picked_candidate_is_the_reply_that_the_model_wrote_with_its_thought():
    replies = ["Thought: one.\nAction: a", "Thought: two.\nAction: a", "Thought: three.\nAction: b"]
    agent = ReAct(LineFormat())
    copilot = CandidatePolicy(lambda number: ScriptedPolicy([replies[number]]), agent, 3)
    player = TerminalPerson(Console(file=io.StringIO()), Typed(["/2"]), full=True)
    episode = asyncio.run(play_episode(ITEM, talk_class()(turns=1), agent, copilot, EpisodeLimits(1), player))
    (turn,) = episode.turns
    assert (turn.reply.text, turn.reply.author, turn.reply.proposed) == (replies[2], "policy", replies[0])


def test_line_typed_for_a_question_that_was_withdrawn_does_not_answer_the_next_one():
    class Late(Typed):
        async def read(self) -> str | None:
            line = await super().read()
            if line == "...":
                await asyncio.Future()
            return line

    shown = io.StringIO()
    person = TerminalPerson(Console(file=shown, width=200), Late(["...", "/approve", "/reject no"]))
    rules = [Rule(["*"], text="a", by="human", timeout_s=0.05), Rule(["*"], by="human")]
    session = talk_class()()
    approval = Approval(rules, session.describe_action, person)
    episode = asyncio.run(play_episode(ITEM, session, plain(), ScriptedPolicy("ab"), EpisodeLimits(2), approval))
    decided = [(turn.reply.review.decision, turn.reply.review.by) for turn in episode.turns if turn.reply.review]
    assert decided == [("rejected", "rule"), ("rejected", "person")]
    assert "was withdrawn. Press Enter to see the next one" in shown.getvalue()


def test_time_limit_of_a_question_begins_when_the_person_sees_it():
    class Thinking(Typed):
        async def read(self) -> str | None:
            line = await super().read()
            if line == "/approve":  # the question without a limit, behind which the other one waits
                await asyncio.sleep(0.6)
            return line

    person = TerminalPerson(Console(file=io.StringIO()), Thinking(["/approve", "/reject no"]))
    rules = [Rule(["*"], text="a", by="human"), Rule(["*"], by="human", timeout_s=0.5)]

    async def play(action: str) -> Episode:
        session = talk_class()()
        approval = Approval(rules, session.describe_action, person)
        return await play_episode(ITEM, session, plain(), ScriptedPolicy(action), EpisodeLimits(1), approval)

    async def both() -> list[Episode]:
        return await asyncio.gather(play("a"), play("b"))

    decided = [(one.turns[0].reply.review.decision, one.turns[0].reply.review.by) for one in asyncio.run(both())]
    assert decided == [("approved", "person"), ("rejected", "person")]


def test_command_that_asks_a_person_is_refused_with_a_closed_standard_input(tmp_path: Path):
    command = [sys.executable, "-c", "from verl_agent.commands.cli import app; app()", "play", "guess_number"]
    done = subprocess.run(["sh", "-c", '"$@" <&-', "sh", *command], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2 and "the standard input is no terminal" in " ".join(done.stderr.split()), done.stderr


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


def test_folder_of_an_evaluation_and_games_of_another_environment_are_refused(tmp_path: Path) -> None:
    def watch(folder: Path, env: str = "guess_number", options: str = "{}") -> tuple[int, str]:
        command = ["play", env, "--options", options, "--copilot", "oracle", "--watch", "--into", str(folder)]
        result = CliRunner().invoke(app, command)
        return result.exit_code, " ".join(result.output.split())

    evaluation = tmp_path / "evaluation"
    evaluation.mkdir()
    (evaluation / "settings.json").write_text("{}")
    code, text = watch(evaluation)
    assert (code, (evaluation / "episodes.jsonl").exists()) == (2, False)
    assert "holds a run whose results would count this episode" in text
    game = tmp_path / "game"
    assert [watch(game)[0], watch(game)[0]] == [0, 0]
    assert len(list(read_records(game / "episodes.jsonl"))) == 2
    code, text = watch(game, options='{"tolerant": true}')
    assert code == 2 and "games with other settings" in text and "folder:" not in text
    (tmp_path / "file").touch()
    assert "--into='" in watch(tmp_path / "file")[1]
    with pytest.raises(ConfigError, match="holds episodes of `verl-agent play`"):
        prepare_evaluation(recipe(game))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["guess_number"], "the standard input is no terminal. Start the command in a terminal, or add --browser"),
        (["gess_number"], "'gess_number' is not registered. Did you mean 'guess_number'?"),
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


def test_person_sees_the_rules_and_the_reply_format_once_before_the_first_observation():
    env, shown = make_env("guess_number", {}), io.StringIO()
    agent = ReAct(env.action_format)
    player = TerminalPerson(Console(file=shown, width=200), Typed(["1", "2", "/end"]), full=True)
    episode = asyncio.run(play_episode(env.tasks("train")[0], env, agent, NobodyElse(), EpisodeLimits(3), player))
    system, first = (message["content"].strip() for message in episode.messages[:2])
    text = shown.getvalue()
    assert agent.instruction() in system and text.count(system) == 1
    assert text.index(system) < text.index(first) < text.index("Your turn")
