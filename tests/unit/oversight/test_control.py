"""Tests of the control socket: pause, step, end, attend, and commands that a run refuses."""

import asyncio
import os
import socket
import stat
import threading
from collections.abc import Awaitable, Callable
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.support.fakes import ITEM, ScriptedPolicy, Talk, plain, talk_class
from tests.support.overseers import ScriptedPerson
from verl_agent.commands.cli import app
from verl_agent.commands.control import show
from verl_agent.errors import ConfigError
from verl_agent.oversight.attend import attend_at_terminal
from verl_agent.oversight.base import Decision, Overseer
from verl_agent.oversight.control import RunControl
from verl_agent.oversight.socket import SOCKET, connect_to_run, controlled, send_command
from verl_agent.rollout.episode import EpisodeLimits, play_episode
from verl_agent.types import Episode, StopReason

LONG = 30
"""Turn limit of episodes that wait for commands."""


class SlowPolicy(ScriptedPolicy):
    """Policy that takes a moment, in which commands arrive."""

    async def reply(self, messages):
        await asyncio.sleep(0.002)
        return await super().reply(messages)


class Run:
    """Episode of `Talk` under control, whose test talks to it from threads."""

    def __init__(self, folder: Path, then: Overseer | None = None, policy: type[ScriptedPolicy] = SlowPolicy) -> None:
        self.folder, self.control, self.talk = folder, RunControl(then), talk_class()()
        self._new_policy = policy

    async def command(self, name: str, **fields) -> dict:
        return await asyncio.to_thread(send_command, self.folder, {"command": name, **fields})

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(5):
            while not condition():
                await asyncio.sleep(0.005)

    def play(self, drive: Callable[["Run"], Awaitable[None]], script=("a",) * LONG) -> Episode:
        """Play the episode, which begins paused, while `drive` sends commands; the rest of it goes on by itself."""

        async def run() -> Episode:
            with controlled(self.folder, self.control):
                limits = EpisodeLimits(len(script))
                self.policy: Any = self._new_policy(script)
                playing = asyncio.create_task(play_episode(ITEM, self.talk, plain(), self.policy, limits, self.control))
                while not self.control._live:
                    await asyncio.sleep(0)
                self.control.handle({"command": "pause", "episode": 1})
                try:
                    await drive(self)
                    self.control.handle({"command": "resume"})
                    return await asyncio.wait_for(playing, 5)
                finally:
                    playing.cancel()

        return asyncio.run(run())


def test_socket_is_the_owners_alone_and_goes_with_the_run(tmp_path):
    async def drive(run: Run) -> None:
        assert stat.S_IMODE(os.stat(tmp_path / SOCKET).st_mode) == 0o600

    Run(tmp_path).play(drive)
    assert not (tmp_path / SOCKET).exists()


def test_socket_opens_in_a_folder_with_a_long_path_and_over_a_stale_one(tmp_path):
    folder = tmp_path / ("x" * 120)
    folder.mkdir()
    stale = socket.socket(socket.AF_UNIX)
    with chdir(folder):  # the whole path is too long for an address
        stale.bind(SOCKET)
    stale.close()

    async def drive(run: Run) -> None:
        assert (await run.command("status"))["paused"] is False

    Run(folder).play(drive)


def test_paused_run_carries_out_nothing_until_it_resumes(tmp_path):
    async def drive(run: Run) -> None:
        await run.command("pause")
        await run.until(lambda: run.control.find(1).waits)
        heard = run.talk.heard
        await asyncio.sleep(0.05)
        assert run.talk.heard == heard
        await run.command("resume")

    episode = Run(tmp_path).play(drive)
    assert (episode.stop, episode.operated) == (StopReason.TURN_LIMIT, False)


def test_step_lets_one_action_of_a_paused_episode_pass(tmp_path):
    async def drive(run: Run) -> None:
        await run.until(lambda: run.control.find(1).waits)
        before = run.talk.heard
        await run.command("step", episode=1)
        await run.until(lambda: run.talk.heard == before + 1 and run.control.find(1).waits)
        await asyncio.sleep(0.05)
        assert run.talk.heard == before + 1

    assert Run(tmp_path).play(drive).stop is StopReason.TURN_LIMIT


def test_new_episode_of_a_paused_run_does_not_begin(tmp_path):
    async def drive(run: Run) -> None:
        await run.command("pause")
        session = talk_class()()
        second = asyncio.create_task(
            play_episode(ITEM, session, plain(), ScriptedPolicy(["a"]), EpisodeLimits(1), run.control)
        )
        await asyncio.sleep(0.05)
        assert session.resets == 0
        await run.command("resume")
        assert (await second).stop is StopReason.TURN_LIMIT

    Run(tmp_path).play(drive)


@pytest.mark.parametrize("fault", [{}, {"fault": "hang"}])
def test_ended_episode_stops_between_turns_and_in_the_middle_of_a_call(tmp_path, fault):
    async def drive(run: Run) -> None:
        if fault:
            await run.command("step", episode=1)
        await run.until(lambda: run.talk.heard > 0 if fault else run.control.find(1).waits)
        await run.command("end-episode", episode=1, reason="seen enough")

    run = Run(tmp_path)
    run.talk = type("Talk", (Talk,), {"made": []})(**fault)
    episode = run.play(drive)
    assert (episode.stop, episode.error, run.talk.closed) == (StopReason.OPERATOR, "seen enough", 1)


def attending(run: Run, lines: list[str]) -> tuple[threading.Thread, list[str]]:
    """Attend episode 1 in a thread with the given lines, then leave; return the thread and the texts shown."""
    shown: list[str] = []
    answers = iter(lines)
    thread = threading.Thread(
        target=attend_at_terminal, args=(run.folder, 1, lambda prompt: next(answers, None), shown.append)
    )
    thread.start()
    return thread, shown


def test_person_attends_an_episode_and_leaves_it_paused(tmp_path):
    async def drive(run: Run) -> None:
        thread, shown = attending(run, ["", "other", "/reject no"])
        await asyncio.to_thread(thread.join, 5)
        assert any("action: a" in text for text in shown)
        await run.until(lambda: run.control.find(1).paused and run.control.find(1).seat is None)

    episode = Run(tmp_path).play(drive)
    assert [turn.reply.review.decision for turn in episode.turns if turn.reply.review] == ["edited", "rejected"]


@pytest.mark.parametrize("whole_run", [False, True])
def test_attending_a_paused_episode_asks_about_the_held_action(tmp_path, whole_run):
    async def drive(run: Run) -> None:
        if whole_run:
            await run.command("pause")
        await run.until(lambda: run.control.find(1).waits)
        thread, shown = attending(run, ["/reject no"])
        await run.until(lambda: any("action: a" in text for text in shown))
        if whole_run:
            await run.command("resume")
        await asyncio.to_thread(thread.join, 5)
        await run.until(lambda: run.control.find(1).seat is None)

    episode = Run(tmp_path).play(drive)
    assert [turn.reply.review.decision for turn in episode.turns if turn.reply.review] == ["rejected"]
    assert episode.turns[0].reply.review, "the held action was carried out"


def test_a_long_action_reaches_the_person_as_a_whole(tmp_path):
    async def drive(run: Run) -> None:
        await run.until(lambda: run.control.find(1).waits)
        thread, shown = attending(run, ["/reject no", "/end"])
        await asyncio.to_thread(thread.join, 5)
        assert any("1 line, 2000000 characters" in text and "x" * 2_000_000 in text for text in shown)

    assert Run(tmp_path).play(drive, ["x" * 2_000_000] * 2).stop is StopReason.OPERATOR


def test_person_whose_episode_another_one_pauses_learns_who_did_and_what_becomes_of_answers(tmp_path):
    async def drive(run: Run) -> None:
        seat = run.control.attend(1, "ada")
        await run.until(lambda: not seat.messages.empty())
        number = seat.messages.get()["number"]

        def read() -> str:
            return str(seat.messages.get_nowait()["notice"])

        run.control.handle({"command": "pause", "episode": 1, "name": "bob"})
        assert read().startswith("The episode is paused by bob.")
        heard = run.talk.heard
        seat.answer(Decision("approve"), number)
        await run.until(lambda: not seat.messages.empty())
        assert read().startswith("Your decision is kept and not carried out yet. The episode is paused by bob.")
        seat.answer(Decision("edit", "other"), number)
        assert "has no effect" in read()
        assert run.talk.heard == heard
        run.control.handle({"command": "resume", "episode": 1, "name": "cleo"})
        assert read() == "Resumed by cleo."
        await run.until(lambda: run.talk.heard == heard + 1)
        run.control.handle({"command": "end-episode", "episode": 1})

    assert Run(tmp_path).play(drive).stop is StopReason.OPERATOR


class HeldPolicy(SlowPolicy):
    """Policy whose replies after the first wait for `go`, and whose cancellation takes a moment."""

    def __init__(self, script) -> None:
        super().__init__(script)
        self.go = asyncio.Event()

    async def reply(self, messages):
        try:
            if self.heard:
                await self.go.wait()
            return await super().reply(messages)
        except asyncio.CancelledError:
            await asyncio.sleep(0.2)
            raise


def test_person_who_comes_back_after_leaving_while_the_policy_writes_decides_on_its_reply(tmp_path):
    async def drive(run: Run) -> None:
        seat = run.control.attend(1, "ada")
        await run.until(lambda: seat.messages.qsize() > 0)
        seat.answer(Decision("approve"), seat.messages.get()["number"])
        await run.until(lambda: run.talk.heard == 1)
        run.control.leave(seat)
        run.policy.go.set()
        await run.until(lambda: run.control.find(1).waits)
        seat = run.control.attend(1, "ada")
        await run.until(lambda: seat.messages.qsize() > 0)
        assert run.talk.heard == 1
        seat.answer(Decision("end"), seat.messages.get()["number"])

    assert Run(tmp_path, policy=HeldPolicy).play(drive).stop is StopReason.OPERATOR


def test_answer_to_an_earlier_question_does_not_decide_on_the_next_action(tmp_path):
    async def drive(run: Run) -> None:
        seat = run.control.attend(1, "ada")
        await run.until(lambda: not seat.messages.empty())
        first = seat.messages.get()["number"]
        seat.answer(Decision("approve"), first)
        await run.until(lambda: not seat.messages.empty())
        second = seat.messages.get()["number"]
        seat.answer(Decision("approve"), first)
        assert "to an earlier question" in seat.messages.get_nowait()["notice"]
        seat.answer(Decision("end"), second)

    episode = Run(tmp_path).play(drive)
    assert (episode.stop, [turn.step is not None for turn in episode.turns]) == (StopReason.OPERATOR, [True, False])


def test_second_command_to_end_an_episode_while_it_ends_changes_nothing(tmp_path):
    async def drive(run: Run) -> None:
        run.control.handle({"command": "resume", "episode": 1})
        await run.until(lambda: run.talk.heard == 1)
        for reason in ("first", "second"):
            run.control.handle({"command": "end-episode", "episode": 1, "reason": reason})
            await asyncio.sleep(0.02)

    assert Run(tmp_path, policy=HeldPolicy).play(drive).error == "first"


def test_second_person_on_one_episode_is_refused_with_the_name_of_the_first(tmp_path):
    async def drive(run: Run) -> None:
        seat = run.control.attend(1, "ada")
        with pytest.raises(ConfigError, match=r"episode 1 is attended by ada\. One person decides at a time"):
            await asyncio.to_thread(attend_at_terminal, run.folder, 1, lambda prompt: None, print)
        run.control.leave(seat)

    Run(tmp_path).play(drive)


def test_episode_that_waits_for_the_person_at_the_terminal_is_not_given_to_another(tmp_path):
    async def drive(run: Run) -> None:
        await run.until(lambda: run.control.find(1).asked)
        with pytest.raises(ConfigError, match="the person at the run's terminal"):
            await asyncio.to_thread(attend_at_terminal, run.folder, 1, lambda prompt: None, print)
        await run.command("end-episode", episode=1)

    assert Run(tmp_path, ScriptedPerson(["..."])).play(drive).stop is StopReason.OPERATOR


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ({"command": "pause", "episode": 9}, "episode 9 is not being played. Running: 1."),
        ({"command": "fly"}, "'fly' is no command. Allowed: status, pause"),
        ({}, "'' is no command"),
        ({"command": "end-episode"}, "episode None is not being played"),
        ({"command": "attend", "episode": "1"}, "episode 1 is not being played"),
    ],
)
def test_command_that_does_not_suit_the_run_is_refused(tmp_path, command, message):
    async def drive(run: Run) -> None:
        with pytest.raises(ConfigError, match=message):
            await asyncio.to_thread(send_command, run.folder, command)

    Run(tmp_path).play(drive)


def test_step_of_a_run_that_is_not_paused_is_refused(tmp_path):
    async def drive(run: Run) -> None:
        await run.command("end-episode", episode=1)
        with pytest.raises(ConfigError, match="nothing is paused"):
            await run.command("step")

    Run(tmp_path).play(drive)


def test_resume_and_step_print_no_state_of_before_they_took_effect(tmp_path):
    async def drive(run: Run) -> None:
        async def shown(*arguments: str) -> str:
            done = await asyncio.to_thread(CliRunner().invoke, app, ["control", str(run.folder), *arguments])
            return " ".join(done.output.split())

        assert "The run is paused by " in await shown("pause")
        assert (await shown("step")).startswith("One held action of each chosen episode passes. `verl-agent control")
        assert (await shown("resume")).startswith("The held actions pass. `verl-agent control")

    Run(tmp_path).play(drive)


def test_attending_without_a_terminal_is_refused(tmp_path):
    done = CliRunner().invoke(app, ["control", str(tmp_path), "attend", "1"])
    assert done.exit_code == 2
    assert "the standard input is no terminal. Start the command in a terminal, or attend in a browser" in " ".join(
        done.output.split()
    )


def test_one_killed_process_is_in_the_singular(capsys):
    show({"killed": 1})
    show({"killed": 2})
    assert capsys.readouterr().out == "ended: 1 process killed.\nended: 2 processes killed.\n"


def test_folder_without_an_active_run_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="no run is active"):
        send_command(tmp_path, {"command": "status"})
    with pytest.raises(ConfigError, match="no folder of a run"):
        send_command(tmp_path / "none", {"command": "status"})


def test_line_that_is_no_json_is_refused(tmp_path):
    async def drive(run: Run) -> None:
        async with connect_to_run(tmp_path) as stream:
            await stream.send_str("hello")
            assert "no JSON" in await stream.receive_str()

    Run(tmp_path).play(drive)
