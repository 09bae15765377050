"""Test of a window whose thread is blocked; it waits for the session's timeouts."""

import asyncio

import pytest

from env_adapters.webarena.browser.grammar import parse_action
from env_adapters.webarena.browser.snapshot import PageView
from tests.support.web import needs_chromium, page, playing, serving
from verl_agent.errors import EnvError

BODY = """<script>function block() {
  const request = new XMLHttpRequest(); request.open('GET', '/slow', false); request.send();
}</script><button onclick="window.open('/popup'); setTimeout(block, 1500)">go</button>"""


@pytest.mark.slow
@needs_chromium
def test_window_that_hangs_ends_its_episode_in_time():
    """The window shares the thread of its opener, which waits for a response."""

    async def answer(request):
        if request.path == "/slow":
            await asyncio.sleep(60)
        return page(BODY if request.path == "/" else "<p>popup")

    with serving(answer) as port, playing(port) as other, playing(port, view=PageView(settle_s=2)) as player:
        player.do("click <'go'>")
        player.run(asyncio.sleep(2))

        async def focus():
            async with asyncio.timeout(22):  # settling, the action and the attachment have limits of 2, 10 and 8 s
                await player.session.act(parse_action("tab_focus [1]"))

        with pytest.raises(EnvError, match=r"site\.test/popup does not answer|does not answer to tab_focus"):
            player.run(focus())
        assert other.do("click <'go'>").tabs
