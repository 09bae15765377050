"""The viewer in a process of its own, as users start it, and a browser to look at it."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from env_adapters.webarena.browser.chromium import installed_chromiums
from tests import ROOT
from verl_agent.results.findings_steps import StepSummary
from verl_agent.trace.behaviors import BEHAVIORS


def cli(*arguments: str, before: str = "pass") -> list[str]:
    """Return the command line of `verl-agent` with arguments; it runs the statement `before` first."""
    return [sys.executable, "-c", f"{before}\nfrom verl_agent.commands.cli import app; app()", *arguments]


@contextmanager
def viewing(runs: Path | Sequence[Path], config: Path, before: str = "pass") -> Iterator[str]:
    """Run `verl-agent view` of one or more runs; yield its URL with the token; see `at`."""
    environment = {**os.environ, "XDG_CONFIG_HOME": str(config)}
    command = cli("view", *map(str, [runs] if isinstance(runs, Path) else runs), "--port", "0", before=before)
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment)
    try:
        assert server.stdout is not None
        found = re.search(r"http://\S+", server.stdout.readline())
        assert found is not None
        yield found[0]
    finally:
        server.terminate()
        server.wait(60)


def at(url: str, path: str) -> str:
    """Return the URL of a page of a viewer, with the token of the URL that it printed."""
    start, _, token = url.partition("/?")
    return f"{start}{path}{'&' if '?' in path else '?'}{token}"


CUT = """() => [...document.querySelectorAll('body *')].filter(element => {
  if (element.closest('.ag-aria-description-container, .q-field, svg, [hidden]')) return false;
  const look = getComputedStyle(element), box = element.getBoundingClientRect();
  const text = [...element.childNodes].some(node => node.nodeType === 3 && node.textContent.trim());
  if (!text || !box.width || !box.height || look.visibility === 'hidden') return false;
  if (element.scrollWidth > element.clientWidth + 1 && look.overflowX === 'hidden') return true;
  let around = element.parentElement;
  while (around && !['auto', 'scroll'].includes(getComputedStyle(around).overflowX)) around = around.parentElement;
  return !around && (box.right > document.documentElement.clientWidth + 1 || box.left < -1);
}).map(element => element.textContent.slice(0, 80))"""
"""Script that returns the texts of a page that are cut: by their box, or by the window where nothing scrolls."""


@contextmanager
def chromium() -> Iterator[Browser]:
    """Run a Chromium of this machine."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(installed_chromiums()[0]), args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


def step(number: int, purpose: str = "train", **values: object) -> StepSummary:
    defaults = {"episodes": 8, "env_errors": 0, "reward": 0.5, "success": 0.25, "turns": 4.0, "max_turns": 6}
    defaults |= {"tokens": 100, "seconds": 1.0, "started_at": f"2026-01-01T0{number}:00:00+00:00", "stops": {}}
    defaults["behaviors"] = dict.fromkeys((behavior.name for behavior in BEHAVIORS), 0.0)
    return StepSummary(step=number, purpose=purpose, **(defaults | values))  # type: ignore[arg-type]
