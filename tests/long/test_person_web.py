"""Test of a person who decides on a web agent's purchases, in a real Chromium: at a terminal and on a viewer's page."""

import json
import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from aiohttp import web

from tests import ROOT
from tests.support.viewing import at, chromium, viewing
from tests.support.web import needs_chromium, page, serving
from verl_agent.oversight.socket import SOCKET
from verl_agent.trace.record import EpisodeRecord
from verl_agent.trace.record_files import read_records

POLICY = """
rules:
  - {actions: [click, press, type], elements: [buy], by: human}
  - {actions: [click, stop], decision: approve}
"""
START_S = 150

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), needs_chromium]


class Shop:
    """Shop that counts purchases and visits of its second page."""

    def __init__(self) -> None:
        self.purchases = self.visits = 0

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.purchases += request.path == "/buy"
        self.visits += request.path == "/other"
        return page("<h1>Shop</h1><a href=/other>Other</a><form action=/buy method=post><button>Buy</button></form>")


def task() -> dict[str, object]:
    check = {"eval_types": ["url_match"], "reference_url": "__SHOPPING__/none", "program_html": []}
    return {
        "task_id": 1,
        "sites": ["shopping"],
        "intent": "Buy what you need.",
        "start_url": "__SHOPPING__",
        "require_login": False,
        "eval": {**check, "reference_answers": None},
    }


def command(folder: Path, port: int, turns: int) -> list[str]:
    """Return the command of an evaluation of one episode whose purchases a person decides on."""
    (folder / "tasks.json").write_text(json.dumps([task()]))
    (folder / "policy.yaml").write_text(POLICY)
    options = [
        f"env.options.tasks={folder}/tasks.json",
        f"env.options.sites={{shopping: 'http://127.0.0.1:{port}'}}",
        "evaluation.tasks=all",
        f"evaluation.approve={folder}/policy.yaml",
        f"evaluation.output_dir={folder}/run",
        f"horizon.eval_max_turns={turns}",
        "env.timeout_s=240",
        "model.path=python:tests.support.policies:buy",
    ]
    recipe = ["--config-dir", str(ROOT / "recipes/webarena"), "--config-name", "eval"]
    return [sys.executable, "-m", "verl_agent.commands.evaluate", *recipe, *options]


class Terminal:
    """Terminal of a command."""

    def __init__(self, arguments: list[str]) -> None:
        self._ours, theirs = pty.openpty()
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "300", "TERM": "dumb"}
        self.run = subprocess.Popen(
            arguments, cwd=ROOT, env=environment, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
        )
        os.close(theirs)
        self.shown = ""

    def read_until(self, pattern: str, timeout_s: float = START_S) -> str:
        """Return what is shown up to a pattern, and forget it."""
        deadline = time.monotonic() + timeout_s
        while (found := re.search(pattern, self.shown)) is None:
            assert time.monotonic() < deadline, f"no {pattern!r} in:\n{self.shown}"
            if select.select([self._ours], [], [], 0.2)[0]:
                try:
                    self.shown += os.read(self._ours, 65536).decode(errors="replace")
                except OSError:  # the command has ended
                    assert re.search(pattern, self.shown), self.shown
        before, self.shown = self.shown[: found.end()], self.shown[found.end() :]
        return before

    def type(self, line: str) -> None:
        """Type a line after the prompt of a question."""
        self.read_until(r"> ")
        time.sleep(0.3)  # text typed before the read is discarded
        os.write(self._ours, f"{line}\n".encode())

    def close(self) -> None:
        """Kill the command if it has not ended."""
        self.run.kill()
        self.run.wait()
        os.close(self._ours)


@contextmanager
def shop_and_terminal(folder: Path, turns: int) -> Iterator[tuple[Shop, Terminal]]:
    """Run the shop, and the evaluation at a terminal."""
    shop = Shop()
    with serving(shop.answer) as port:
        terminal = Terminal(command(folder, port, turns))
        try:
            yield shop, terminal
        finally:
            terminal.close()


def recorded(folder: Path) -> EpisodeRecord:
    (record,) = read_records(folder / "run/episodes.jsonl")
    return record


def test_purchase_waits_for_the_approval_of_a_person_at_the_terminal(tmp_path):
    with shop_and_terminal(tmp_path, turns=4) as (shop, terminal):
        asked = terminal.read_until(r"turn 1 of 4[\s\S]*── action: click \[\d+\]")
        link = re.findall(r"\[(\d+)\] link 'Other'", asked)[-1]
        terminal.type("/reject too dear")
        terminal.read_until("turn 2 of 4")
        assert (shop.purchases, shop.visits) == (0, 0)
        terminal.type(f"/take click [{link}]")
        terminal.read_until("turn 3 of 4[\\s\\S]*Your turn")
        assert (shop.purchases, shop.visits) == (0, 1)
        terminal.type("/back")
        terminal.read_until(r"turn 3 of 4[\s\S]*── action: click")
        assert shop.purchases == 0
        terminal.type("/approve")
        terminal.read_until("turn 4 of 4")
        assert shop.purchases == 1
        terminal.type("/reject once is enough")
        terminal.read_until("results: ")
        assert terminal.run.wait(60) == 0
        assert (shop.purchases, shop.visits) == (1, 1)
    turns = recorded(tmp_path)["turns"]
    decided = [(turn["review"]["decision"], turn["review"]["by"]) for turn in turns]
    assert decided == [(decision, "person") for decision in ("rejected", "taken_over", "approved", "rejected")]
    assert [turn.get("author") for turn in turns] == [None, "person", None, None]
    assert turns[0]["observation"] == "The action was not carried out: too dear"
    assert "Buy" not in str(turns[1]["action"]) and "click" in turns[1]["proposed"]
    assert turns[1]["proposed"] == turns[0]["reply"]
    assert [turn["info"].get("rejected_action", 0) for turn in turns] == [1, 0, 0, 1]


def test_purchase_is_rejected_on_a_page_of_the_viewer(tmp_path):
    with shop_and_terminal(tmp_path, turns=3) as (shop, terminal):
        terminal.read_until("turn 1 of 3")
        assert (tmp_path / "run" / SOCKET).exists()
        with viewing(tmp_path / "run", tmp_path / "config") as url, chromium() as browser:
            attended = browser.new_page()
            attended.goto(at(url, "/run/run/control/1?name=ada"))
            attended.get_by_text("waits for the decision of the person at the run's terminal").wait_for()
            terminal.type("/reject not here")
            for turn in (2, 3):
                attended.get_by_text(f"turn {turn} of 3: the agent proposes").wait_for(timeout=60_000)
                assert shop.purchases == 0
                attended.get_by_label("action, or reason").fill("too dear")
                attended.get_by_role("button", name="reject", exact=True).click()
            attended.get_by_text("The episode has ended.").wait_for()
        terminal.read_until("results: ")
        assert terminal.run.wait(60) == 0
        assert shop.purchases == 0
    turns = recorded(tmp_path)["turns"]
    assert [turn["review"]["reason"] for turn in turns] == ["not here", "too dear", "too dear"]
    assert not any("author" in turn for turn in turns)
