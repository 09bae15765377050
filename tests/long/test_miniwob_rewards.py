"""Comparison of the rewards of MiniWoB's own pages with those that the adapter's copies of the pages show.

Both pages start the same task, the original as MiniWoB's own harness does (`miniwob/selenium_instance.py`). The same
random events are sent to both. After each event, the reward of the original must be the one that the copy shows.
"""

import asyncio
import random
import threading
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec

import pytest
from playwright.async_api import async_playwright

from env_adapters.webarena.browser.chromium import find_chromium
from env_adapters.webarena.tasks.miniwob import INSTALL_COMMAND, LOCATOR, PAGE_HEADER, PageServer, pages_folder
from env_adapters.webarena.tasks.miniwob_pages import CHECKS, PAGES
from tests.support.web import needs_chromium

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    needs_chromium,
    pytest.mark.skipif(find_spec("miniwob") is None, reason=f"needs the package miniwob: {INSTALL_COMMAND}"),
]
SEEDS = 16
EVENTS = 8
"""Most events of an episode."""
START = """seed => { Math.seedrandom(seed); core.EPISODE_MAX_TIME = 2e9; core.startEpisodeReal(); }"""
ACT = """([pick, word]) => {
  const all = [...document.querySelectorAll('#area *')];
  const likely = all.filter(one => one.matches('button, a, input, select, label, li, .alink, [class*=button]'));
  const from = pick % 4 && likely.length ? likely : all;
  const target = from[Math.floor(pick / 4) % from.length];
  if (target && target.matches('input:not([type=checkbox]):not([type=radio]), textarea')) {
    const words = document.getElementById('query').textContent.match(/\\w+/g) || ['a'];
    target.value = words[word % words.length];
  }
  const send = (type, kind) => target && target.dispatchEvent(new kind(type, {bubbles: true, cancelable: true}));
  send('pointerdown', PointerEvent);
  for (const type of ['mousedown', 'mouseup', 'click']) send(type, MouseEvent);
  for (const type of ['input', 'change', 'keyup']) send(type, Event);
}"""
QUERY = "document.getElementById('query').textContent"


class QuietHandler(SimpleHTTPRequestHandler):
    def guess_type(self, path):
        """Return the type of a file; the pages do not state their encoding, which is UTF-8."""
        kind = super().guess_type(path)
        return f"{kind}; charset=utf-8" if kind == "text/html" else kind

    def log_message(self, *arguments):
        """Log nothing."""


@contextmanager
def originals():
    """Serve the pages of the package unchanged; yield their URL."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=str(pages_folder())))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


async def play(original, copy, seed):
    """Send the same events to both pages; return the rewards of both after each, until the task ends."""
    await original.evaluate(START, str(seed))
    rng, rewards = random.Random(seed), []
    for _ in range(EVENTS):
        event = [rng.randrange(10**6), rng.randrange(100)]
        await asyncio.gather(*(page.evaluate(ACT, event) for page in (original, copy)))
        (query, done, reward), (same_query, shown) = await asyncio.gather(
            original.evaluate(f"[{QUERY}, WOB_DONE_GLOBAL, String(WOB_RAW_REWARD_GLOBAL)]"),
            copy.evaluate(f"[{QUERY}, {LOCATOR}]"),
        )
        if not rewards and query != same_query:
            return [("another task", "")]
        rewards.append((reward if done else "0", shown))
        if done:
            break
    return rewards


async def compare(url, copies_url):
    """Return the rewards of both pages for each event of each page and seed."""
    cases = {}
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=find_chromium(), args=["--no-sandbox"])
        for name in sorted(PAGES.keys() - CHECKS.keys()):  # a page with an added check may differ
            original, copy = [await browser.new_page() for _ in range(2)]
            for page in (original, copy):
                page.on("dialog", lambda dialog: dialog.dismiss())
            await copy.set_extra_http_headers({PAGE_HEADER: name})
            await original.goto(f"{url}/miniwob/{name}.html")
            for seed in range(SEEDS):
                await copy.goto(f"{copies_url}/miniwob/{name}.html?seed={seed}")
                cases[name, seed] = await play(original, copy, seed)
                await copy.evaluate("localStorage.clear()")
            for page in (original, copy):
                await page.context.close()
        await browser.close()
    return cases


def test_copies_show_the_rewards_of_the_original_pages():
    copies = PageServer(pages_folder())
    with originals() as url:
        cases = asyncio.run(compare(url, f"http://127.0.0.1:{copies.server_address[1]}"))
    copies.shutdown()
    copies.server_close()
    events = [rewards for case in cases.values() for rewards in case]
    different = {key: case for key, case in cases.items() if any(one != other for one, other in case)}
    ended = [case[-1][0] for case in cases.values() if case[-1][0] != "0"]
    print(  # noqa: T201 - the figures of the data sheet
        f"{len(cases)} tasks, {len(events)} events; {len(ended)} tasks ended, "
        f"{ended.count('1')} of them with reward 1; different: {different}"
    )
    assert len(events) >= 4000 and ended.count("1") >= 20
    assert not different
