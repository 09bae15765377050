"""Tests of a person who plays and attends episodes on a page of the viewer, in a real browser."""

import asyncio
import os
import re
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import Page

from tests import ROOT
from tests.support.fakes import ITEM, ScriptedPolicy, plain, talk_class
from tests.support.viewing import at, chromium, cli, viewing
from tests.support.web import needs_chromium
from verl_agent.oversight.control import RunControl
from verl_agent.oversight.socket import controlled, send_command
from verl_agent.rollout.episode import EpisodeLimits, play_episode
from verl_agent.trace.record_files import read_records
from verl_agent.types import Episode

pytestmark = needs_chromium


def click(page: Page, button: str, text: str = "") -> None:
    """Write a text, and click on an enabled button."""
    found = page.get_by_role("button", name=button, exact=True)
    found.and_(page.locator(":not([disabled])")).wait_for()
    page.get_by_label("action, or reason").fill(text)
    found.click()


def attended(folder: Path, drive: Callable[[str], None]) -> Episode:
    """Play an episode that waits for a person at each turn, while `drive` uses the viewer at its URL."""
    (folder / "episodes.jsonl").touch()
    failures: list[BaseException] = []

    def driven(url: str) -> None:
        try:
            drive(url)
        except BaseException as error:
            failures.append(error)

    async def run(url: str) -> Episode:
        control = RunControl(attended=True)
        with controlled(folder, control):
            thread = threading.Thread(target=driven, args=(url,))
            thread.start()
            limits = EpisodeLimits(4)
            playing = asyncio.create_task(
                play_episode(ITEM, talk_class()(), plain(), ScriptedPolicy("abcd"), limits, control)
            )
            await asyncio.to_thread(thread.join)
            try:
                return await asyncio.wait_for(playing, 1 if failures else 20)
            finally:
                if failures:
                    raise failures[0]

    with viewing(folder, folder / "config") as url:
        return asyncio.run(run(at(url, f"/run/{folder.name}/control/1?name=ada")))


def test_person_rejects_takes_over_hands_back_and_approves_on_a_page(tmp_path: Path) -> None:
    def drive(url: str) -> None:
        with chromium() as browser:
            page = browser.new_page()
            page.goto(url)
            page.get_by_text("turn 1 of 4: the agent proposes").wait_for()
            page.get_by_text("Action: a").wait_for()
            assert page.get_by_role("button", name="hand back").is_disabled()
            assert page.get_by_text("Goal and rules").count() == 1
            click(page, "reject", "not this")
            page.get_by_text("turn 2 of 4: the agent proposes").wait_for()
            click(page, "take over", "mine")
            page.get_by_text("turn 3 of 4: your turn").wait_for()
            page.get_by_text("History: 3 messages since the first observation").click()
            page.get_by_text("not this").wait_for()
            assert page.get_by_role("button", name="approve").is_disabled()
            click(page, "hand back")
            page.get_by_text("turn 3 of 4: the agent proposes").wait_for()
            page.get_by_label("action, or reason").fill("/approve")
            page.get_by_label("action, or reason").press("Enter")
            page.get_by_text("turn 4 of 4: the agent proposes").wait_for()
            click(page, "end", "enough")
            page.get_by_text("The episode has ended.").wait_for()

    episode = attended(tmp_path, drive)
    decisions = [(turn.reply.review.decision, turn.reply.review.reason) for turn in episode.turns if turn.reply.review]
    assert decisions[0] == ("rejected", "not this")
    assert [decision for decision, _ in decisions][1:3] == ["taken_over", "approved"]
    assert (episode.turns[1].reply.author, episode.turns[1].action) == ("person", "mine")
    assert episode.stop.value == "operator" and "enough" in episode.error


def test_closed_page_leaves_the_episode_waiting_and_another_page_goes_on(tmp_path: Path) -> None:
    def drive(url: str) -> None:
        with chromium() as browser:
            page = browser.new_page()
            page.goto(url)
            page.get_by_text("turn 1 of 4: the agent proposes").wait_for()
            second = browser.new_page()
            second.goto(url)
            second.get_by_text("is attended by").wait_for()
            page.close()
            second.get_by_text("turn 1 of 4: the agent proposes").wait_for()
            click(second, "end")
            second.get_by_text("The episode has ended.").wait_for()

    (turn,) = attended(tmp_path, drive).turns
    assert turn.step is None, "the action reached the environment"


def test_double_click_decides_on_one_action_and_a_page_that_lost_its_connection_attends_again(tmp_path: Path) -> None:
    def drive(url: str) -> None:
        with chromium() as browser:
            page = browser.new_page()
            page.goto(url)
            approve = page.get_by_role("button", name="approve", exact=True)
            approve.and_(page.locator(":not([disabled])")).wait_for()
            second = "new MouseEvent('click', {bubbles: true, detail: 2})"
            approve.evaluate(f"button => {{ button.click(); button.dispatchEvent({second}) }}")
            page.get_by_text("turn 2 of 4: the agent proposes").wait_for()
            asked = "document.querySelector('[data-question]').dataset.question"
            number = page.evaluate(asked)
            page.evaluate("window.socket.disconnect(); window.socket.connect()")
            page.wait_for_function(f"number => {asked} !== number", arg=number)
            click(page, "reject", "no")
            page.get_by_text("turn 3 of 4: the agent proposes").wait_for()
            stale = "button => { button.dataset.question = '0'; button.click() }"
            approve.evaluate(stale)
            page.get_by_text("This answer was to an earlier question").wait_for()
            click(page, "end")
            page.get_by_text("The episode has ended.").wait_for()

    turns = attended(tmp_path, drive).turns
    assert [turn.reply.review.decision for turn in turns if turn.reply.review] == ["approved", "rejected", "ended"]


def test_page_of_a_paused_run_says_that_decisions_wait_until_it_resumes(tmp_path: Path) -> None:
    def command(name: str) -> None:
        sent = threading.Thread(target=send_command, args=(tmp_path, {"command": name, "name": "eve"}))
        sent.start()  # this thread has the event loop of Playwright
        sent.join()

    def drive(url: str) -> None:
        command("pause")
        with chromium() as browser:
            page = browser.new_page()
            page.goto(url)
            page.get_by_text("turn 1 of 4: the agent proposes").wait_for()
            page.get_by_text("The run is paused by eve. What you decide is carried out").wait_for()
            click(page, "approve")
            page.get_by_text("Your decision is kept and not carried out yet. The run is paused by eve").wait_for()
            command("resume")
            page.get_by_text("turn 2 of 4: the agent proposes").wait_for()
            page.get_by_text("The run is paused").wait_for(state="hidden")
            click(page, "end")
            page.get_by_text("The episode has ended.").wait_for()

    assert len(attended(tmp_path, drive).turns) == 2


def test_task_is_played_by_hand_on_a_page(tmp_path: Path) -> None:
    command = cli("play", "guess_number", "--split", "small_test", "--browser", "--port", "0")
    command += ["--into", str(tmp_path / "game")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_CONFIG_HOME": str(tmp_path)}
    game = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path, env=environment)
    assert game.stdout is not None
    try:
        url = next(found[0] for line in game.stdout if (found := re.search(r"http://\S+", line)))
        with chromium() as browser:
            page = browser.new_page()
            page.goto(url)
            for number in range(1, 11):
                status = page.get_by_text(re.compile(rf"turn {number} of 50: your turn|The episode has ended"))
                status.wait_for()
                if "ended" in status.inner_text():
                    break
                click(page, "edit", str(number))
            page.get_by_text("The episode has ended.").wait_for()
    finally:
        game.send_signal(signal.SIGINT)
        game.wait(20)
    (record,) = read_records(tmp_path / "game/episodes.jsonl")
    assert record["success"] and {turn["author"] for turn in record["turns"]} == {"person"}
