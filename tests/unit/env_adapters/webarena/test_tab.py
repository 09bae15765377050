"""Tests without a browser of the tabs of a session."""

import asyncio
import time
from types import SimpleNamespace

import pytest
from playwright.async_api import Error

from env_adapters.webarena.browser.session import BrowserSession
from env_adapters.webarena.browser.snapshot import PageView
from env_adapters.webarena.browser.tab import Tab
from verl_agent.errors import EnvError

OLD, NEW, NEWEST = "http://site.test/old", "http://site.test/new", "http://site.test/newest"


class MovingPage:
    """Page that loads `NEW` before its events are on, and `NEWEST` after the first command with events.

    Stands for Playwright's page and for its session.
    """

    viewport_size = None

    def __init__(self, moves_again):
        self.context = self._impl_obj = self
        self._moves_again = moves_again
        self._handlers = {}

    async def new_cdp_session(self, page):
        return self

    async def detach(self):
        pass

    def on(self, event, handler):
        self._handlers[event] = handler

    async def send(self, method, params, timeout):
        if method == "Target.getTargetInfo":
            return {"targetInfo": {"targetId": "frame", "url": OLD}}
        if method == "Page.getFrameTree":
            if self._moves_again:
                self._handlers["Page.frameNavigated"]({"frame": {"id": "frame", "url": NEWEST}})
            return {"frameTree": {"frame": {"id": "frame", "url": NEW, "urlFragment": "#part"}}}
        return {}


def attached_url(moves_again):
    async def run():
        page = MovingPage(moves_again)
        tab = Tab(page)
        await tab.attach()
        return tab.url

    return asyncio.run(run())


def test_document_that_comes_before_the_events_are_on_is_not_missed():
    assert attached_url(moves_again=False) == f"{NEW}#part"


def test_document_that_comes_during_the_attachment_has_precedence():
    assert attached_url(moves_again=True) == NEWEST


class ClosingPage:
    """Page that closes after a time, in seconds, and whose closing the driver reports then."""

    url = "http://site.test/"

    def __init__(self, seconds):
        self._end = time.monotonic() + seconds

    def is_closed(self):
        return time.monotonic() > self._end


def closes(seconds, alive=True, site_error=""):
    session = BrowserSession(None, {}, PageView())
    session.network_proxy.traffic.site_error = site_error
    session._lease = SimpleNamespace(browser=SimpleNamespace(alive=alive))
    tab = Tab(ClosingPage(seconds))
    return asyncio.run(session._tab_has_closed(tab, EnvError(str(Error("the page or its browser has been closed")))))


def test_late_report_of_a_closed_tab_is_awaited():
    assert closes(seconds=0.8)


@pytest.mark.parametrize("failure", [{"alive": False}, {"site_error": "the connection closed"}])
def test_closed_tab_is_not_awaited_after_a_failure(failure):
    before = time.monotonic()
    assert not closes(seconds=5, **failure) and time.monotonic() - before < 2


def test_evaluator_page_of_a_closed_session_raises_env_error():
    with pytest.raises(EnvError, match="the browser of this session has ended"):
        asyncio.run(BrowserSession(None, {}, PageView()).new_evaluator_page())
