"""Test of the kill switch in the middle of 16 web episodes in a real Chromium, at a site that counts requests."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from aiohttp import web

from tests import ROOT
from tests.support.waiting import wait_until
from tests.support.web import needs_chromium, page, serving
from verl_agent.oversight.socket import SOCKET, send_command

EPISODES = 16
KILL_S = 5.0
"""Seconds after which no process of the run is left."""
BUSY = """<h1>Shop</h1><a href=/other>Other</a><script>
setInterval(() => fetch('/beat'), 100); addEventListener('pagehide', () => navigator.sendBeacon('/bye'))</script>"""
"""Page that sends a request every 100 ms, and one more when it is closed in an orderly way."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), needs_chromium]


class Site:
    """Site that counts the requests of its pages."""

    def __init__(self) -> None:
        self.requests = 0

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.requests += 1
        return page(BUSY)


def task(number: int) -> dict[str, object]:
    check = {"eval_types": ["url_match"], "reference_url": "__SHOPPING__/none", "program_html": []}
    return {
        "task_id": number,
        "sites": ["shopping"],
        "intent": "Wander about.",
        "start_url": "__SHOPPING__",
        "require_login": False,
        "eval": {**check, "reference_answers": None},
    }


def start(folder: Path, port: int) -> "subprocess.Popen[str]":
    """Start an evaluation that plays all episodes at once and would go on for very long."""
    tasks = folder / "tasks.json"
    tasks.write_text(json.dumps([task(number) for number in range(EPISODES)]))
    recipe = ["--config-dir", str(ROOT / "recipes/webarena"), "--config-name", "eval"]
    options = [
        f"env.options.tasks={tasks}",
        f"env.options.sites={{shopping: 'http://127.0.0.1:{port}'}}",
        "evaluation.tasks=all",
        f"evaluation.concurrency={EPISODES}",
        f"evaluation.output_dir={folder}/run",
        "horizon.eval_max_turns=100000",
        "env.timeout_s=240",
        "env.retries=5",
        "env.options.view={settle_s: 1}",  # the pages never settle
        "model.path=python:tests.support.policies:wander",
    ]
    command = [sys.executable, "-m", "verl_agent.commands.evaluate", *recipe, *options]
    return subprocess.Popen(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, start_new_session=True)


def test_kill_in_the_middle_of_sixteen_web_episodes_leaves_no_process_and_sends_nothing(tmp_path):
    site = Site()
    with serving(site.answer) as port:
        run = start(tmp_path, port)
        started: list[psutil.Process] = []
        try:
            folder = tmp_path / "run"
            wait_until(lambda: (folder / SOCKET).exists(), 90)
            wait_until(lambda: _after_a_turn(folder) == EPISODES, 150, every_s=0.1)
            started = psutil.Process(run.pid).children(recursive=True)
            assert any("chrom" in process.name() or "headless" in process.name() for process in started)
            began = time.monotonic()
            answer = send_command(folder, {"command": "end"})
            killed_s, counted = time.monotonic() - began, site.requests
            assert answer["killed"] >= len(started) - 5  # renderers come and go
            status = run.wait(timeout=KILL_S)
            ended_s = time.monotonic() - began
            left = [process for process in started if process.is_running()]
            time.sleep(3)
            seconds = f"processes dead after {killed_s:.2f} s, run after {ended_s:.2f} s; {counted} requests"
            print(f"\n{answer['killed']} {seconds}")  # noqa: T201 - a measurement
            assert ended_s < KILL_S and not left
            assert site.requests == counted
            assert status in (130, -signal.SIGKILL)
            assert not [
                one for one in psutil.process_iter(["cmdline"]) if str(tmp_path) in " ".join(one.info["cmdline"] or [])
            ]
        finally:
            run.kill()
            for process in started:
                if process.is_running():
                    process.kill()
            run.wait()


def _after_a_turn(folder: Path) -> int:
    return sum(one["turn"] >= 2 for one in send_command(folder, {"command": "status"})["episodes"])
