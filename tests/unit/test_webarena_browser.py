"""Actions on pages of our own, and what goes wrong with pages, sites and browsers."""

import asyncio
import os
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from threading import Thread

import psutil
import pytest
from aiohttp import web

from env_adapters.webarena.browser.grammar import ActionError
from env_adapters.webarena.browser.network_proxy import Address
from env_adapters.webarena.browser.pool import RefusedError
from env_adapters.webarena.browser.process import BrowserLimits, family_of
from env_adapters.webarena.browser.snapshot import View
from env_adapters.webarena.browser.tabs import MAX_TABS
from tests.support.web import SITE, Player, needs_chromium, page, playing, serving, serving_pages
from verl_agent.errors import EnvError

pytestmark = needs_chromium
FORM = """<h1>Form</h1><input aria-label=Name oninput="out.textContent = 'is ' + this.value">
<form action=/sent><input name=q aria-label=Query></form><p id=out>nothing</p>
<button onclick="out.textContent = 'pressed'">Press me</button><label><input type=checkbox>Agree</label>
<div onmouseover="out.textContent = 'hovered'"><a href=#>Menu</a></div>
<select aria-label=Size onchange="out.textContent = 'size ' + this.value">
<option>Small<option>Large<option disabled>Huge</select>
<a href=/next>Next</a><a href=/next target=_blank>Elsewhere</a>
<p style='margin-top:2000px'>Far <a href=/next>below</a></p>"""
PAGES = {"/": FORM, "/next": "<h1>Second</h1><a href=/>Home</a>", "/sent": "<h1>Sent</h1>"}


@pytest.fixture(scope="module")
def site():
    with serving_pages(PAGES) as port:
        yield port


def test_a_click_presses_and_follows(site):
    with playing(site) as player:
        assert "'pressed'" in player.do("click <'Press me'>").text
        assert "checked: true" in player.do("click <checkbox>").text
        sight = player.do("click <'Next'>")
        assert sight.url == f"{SITE}/next" and "heading 'Second'" in sight.text


def test_typing_goes_where_it_is_meant_and_enter_sends(site):
    with playing(site) as player:
        assert "'is hello'" in player.do("type <'Name'> [hello] [0]").text
        assert player.do("type <'Query'> [shoes & socks]").url == f"{SITE}/sent?q=shoes+%26+socks"


def test_a_text_is_typed_behind_what_a_field_holds():
    """Its middle is clicked, and the cursor would be there; what the page has selected is replaced."""
    body = """<input aria-label=Long value="0123456789" style="width: 60px">
    <input type=number aria-label=Count value=12>
    <textarea aria-label=Lines rows=3>one\ntwo\nthree</textarea>
    <input aria-label=Chosen value=old onclick="this.select()">"""
    with serving_pages({"/": body}) as port, playing(port) as player:
        for name, held in (("Long", "0123456789x"), ("Count", "123"), ("Lines", "one\ntwo\nthreex"), ("Chosen", "x")):
            player.do(f"type <'{name}'> [{'3' if name == 'Count' else 'x'}] [0]")
            assert player.run(player.session.page.input_value(f"[aria-label={name}]")) == held


def test_a_long_text_is_typed_at_once(site):
    text = "word " * 300
    with playing(site) as player:
        player.do(f"type <'Name'> [{text}] [0]")
        assert player.run(player.session.page.input_value("[aria-label=Name]")) == text


def test_hovering_and_keys(site):
    with playing(site) as player:
        assert "'hovered'" in player.do("hover <link 'Menu'>").text
        player.do("type <'Name'> [abc] [0]")
        player.do("press [Control+a]")
        assert "'is x'" in player.do("press [x]").text


def test_a_list_is_chosen_from_by_name(site):
    with playing(site) as player:
        assert "'size Large'" in player.do("type <'Size'> [large]").text
        with pytest.raises(ActionError, match="no option 'Medium'"):
            player.do("type <'Size'> [Medium]")


def test_options_are_shown_and_clicked_where_that_is_asked_for(site):
    with playing(site, view=View(show_options=True)) as player:
        assert "option 'Small' selected: True" in player.sight.text
        assert "option 'Large' selected: True" in player.do("click <'Large'>").text
        with pytest.raises(ActionError, match="is disabled"):
            player.do("click <'Huge'>")


def test_scrolling_shows_another_part_and_the_whole_page_shows_all(site):
    with playing(site) as player:
        assert "'below'" not in player.sight.text
        for _ in range(2):
            player.do("scroll [down]")
        assert "'below'" in player.do("scroll [down]").text
        assert "'below'" not in player.do("scroll [up]").text
    with playing(site, view=View(whole=True)) as player:
        assert player.do("click <'below'>").url == f"{SITE}/next"


def test_going_back_and_forward(site):
    with playing(site) as player:
        with pytest.raises(ActionError, match="no page to go back to"):
            player.do("go_back")
        player.do("click <'Next'>")
        assert player.do("go_back").url == f"{SITE}/"
        assert player.do("go_forward").url == f"{SITE}/next"
        with pytest.raises(ActionError, match="no page to go forward to"):
            player.do("go_forward")


def test_tabs_open_change_and_close(site):
    with playing(site, "/", "/next") as player:
        assert player.sight.tabs == "Tab 0 (current): Page | Tab 1: Page"
        assert player.do("tab_focus [1]").url == f"{SITE}/next"
        assert player.do("new_tab").tabs == "Tab 0: Page | Tab 1: Page | Tab 2 (current): "
        assert player.do("goto [site.test/next]").url == f"{SITE}/next"
        assert player.do("close_tab").tabs == "Tab 0: Page | Tab 1 (current): Page"
        with pytest.raises(ActionError, match="no tab 5"):
            player.do("tab_focus [5]")
        player.do("close_tab")
        assert player.do("close_tab").url == "about:blank"  # there is always one


def test_a_link_that_opens_a_tab_leaves_the_agent_where_it_is(site):
    with playing(site) as player:
        sight = player.do("click <'Elsewhere'>")
        assert sight.url == f"{SITE}/" and sight.tabs.startswith("Tab 0 (current): Page | Tab 1: ")
        assert player.do("tab_focus [1]").url == f"{SITE}/next"
        while len(player.session._tabs) < MAX_TABS:
            player.do("new_tab")
        with pytest.raises(ActionError, match="8 tabs already"):
            player.do("new_tab")


CLOSING = """<button onclick="window.close()">close</button>
<button onclick="setTimeout(() => window.close(), 30)">soon</button>
<button onclick="setTimeout(() => window.close(), 1500)">later</button>
<button onclick="window.open('/popup')">open</button>"""


@pytest.mark.parametrize("name", ["close", "soon"])
def test_a_page_that_closes_its_own_tab_ends_no_episode(name):
    """Windows that a script opened may close themselves: the others stay."""
    with serving_pages({"/": CLOSING, "/popup": CLOSING}) as port, playing(port) as player:
        player.do("click <'open'>")
        assert player.do("tab_focus [1]").url == f"{SITE}/popup"
        sight = player.do(f"click <'{name}'>")
        assert (sight.tabs, sight.url) == ("Tab 0 (current): Page", f"{SITE}/")
        assert player.do("click <'open'>").tabs.startswith("Tab 0 (current): Page | Tab 1: ")


@pytest.mark.parametrize("name", ["close", "soon"])
def test_after_the_last_tab_comes_an_empty_one_that_says_why(name):
    """A popup closes itself when the agent has closed all other tabs."""
    with serving_pages({"/": CLOSING, "/popup": CLOSING}) as port, playing(port) as player:
        player.do("click <'open'>")
        assert player.do("close_tab").url == f"{SITE}/popup"
        sight = player.do(f"click <'{name}'>")
        assert (sight.url, sight.notes) == ("about:blank", ("The last tab was closed by its page; this one is empty.",))
        assert player.do("goto [site.test]").url == f"{SITE}/"


def test_a_tab_that_closes_between_two_actions_is_said():
    with serving_pages({"/": CLOSING, "/popup": CLOSING}) as port, playing(port) as player:
        player.do("click <'open'>")
        player.do("close_tab")
        player.do("click <'later'>")
        time.sleep(3)
        with pytest.raises(ActionError, match="The page had closed its tab"):
            player.do("scroll [down]")
        assert player.run(player.session.look()).url == "about:blank"


def test_another_document_is_numbered_anew_even_where_its_nodes_have_the_same_ids(site):
    with playing(site) as player:
        tab = player.session.tab
        assert tab._numbers.of("a node") != "1"
        tab._note_arrival({"frame": {"id": tab._main}})
        assert tab._numbers.of("a node") == "1"


def test_an_element_that_is_not_there_is_named(site):
    with playing(site) as player:
        with pytest.raises(ActionError, match=r"no element \[999999\]"):
            player.do("click [999999]")
        number = next(key for key, one in player.sight.page.elements.items() if "Press me" in one.words)
        player.run(player.session.page.evaluate("document.querySelector('button').remove()"))
        with pytest.raises(ActionError, match="cannot be reached"):
            player.do(f"click [{number}]")


def test_a_page_is_waited_for_until_it_has_settled():
    body = """<script>const show = text => setTimeout(() => out.textContent = text, 20)</script>
    <button onclick="fetch('/slow').then(r => r.text()).then(show)">load</button><p id=out>nothing</p>"""

    async def answer(request):
        if request.path == "/slow":
            await asyncio.sleep(0.5)
            return web.Response(text="arrived")
        return page(body)

    with serving(answer) as port, playing(port) as player:
        assert "'arrived'" in player.do("click <'load'>").text


def test_a_page_that_never_stops_changing_is_read_in_time():
    body = "<p id=out></p><script>setInterval(() => out.textContent = Math.random(), 5)</script><a href=#>link</a>"
    with serving_pages({"/": body}) as port, playing(port, view=View(settle_s=30)) as player:
        begun = time.monotonic()
        player.do("click <'link'>")
        assert time.monotonic() - begun < 15


@contextmanager
def dying(answer: bytes):
    """A port that reads a request, says these bytes, and hangs up."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve():
        with suppress(OSError):
            while True:
                connection, _ = server.accept()
                connection.recv(65536)
                connection.sendall(answer)
                connection.close()

    thread = Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield server.getsockname()[1]
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join()


async def slow(request):
    if request.path == "/slow":
        await asyncio.sleep(2)
        return page("late")
    return page("<a href=/next onclick=\"fetch('/slow')\">go</a>" if request.path == "/" else "<h1>Second</h1>")


async def hang(request):
    await asyncio.sleep(30)
    return page("late")


def test_a_page_that_never_comes_ends_the_episode_with_its_reason():
    async def answer(request):
        return await hang(request) if request.path == "/never" else page("<a href=/never>go</a><button>stay</button>")

    with serving(answer) as port:
        with (
            playing(port, view=View(settle_s=2)) as player,
            pytest.raises(EnvError, match=r"/never did not come within 2 s"),
        ):
            player.do("click <'go'>")
        with (
            playing(port, view=View(settle_s=2)) as player,
            pytest.raises(EnvError, match=r"/never did not come within 2 s"),
        ):
            player.do("goto [http://site.test/never]")
        player = Player(port, View(settle_s=2))
        with pytest.raises(EnvError, match=r"the start page http://site.test/never does not come"):
            player.start("/never")
        player.close()


def test_an_image_that_never_comes_holds_nobody_up_for_ever():
    async def answer(request):
        return await hang(request) if request.path == "/never.png" else page("<h1>Here</h1><img src=/never.png>")

    with serving(answer) as port, playing(port, view=View(settle_s=1)) as player:
        assert "'Here'" in player.sight.text


def test_boxes_are_closed_and_said():
    body = """<button onclick="alert('hello'); out.textContent = 'went on'">alert</button><p id=out></p>
    <button onclick="out.textContent = 'said ' + confirm('sure?')">ask</button>"""
    with serving_pages({"/": body}) as port, playing(port) as player:
        sight = player.do("click <'alert'>")
        assert sight.notes == ("A box (alert) said 'hello'; it was closed.",) and "'went on'" in sight.text
        assert "'said false'" in player.do("click <'ask'>").text
        assert player.do("scroll [down]").notes == ()


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("while (true) alert('x')", "showed more than 20 boxes"),
        ("for (let i = 0; i < 500; i++) window.open('/')", "opened more than 20 windows"),
        ("while (true) {}", "does not answer|did not come"),
    ],
)
def test_a_page_that_runs_wild_ends_its_own_episode_only(script, why):
    pages = {"/": f'<button onclick="{script}">go</button><a href=#>stay</a>'}
    with (
        serving_pages(pages) as port,
        playing(port) as other,
        playing(port, view=View(settle_s=1)) as player,
    ):
        with pytest.raises(EnvError, match=why):
            player.do("click <'go'>")
        assert other.do("click <'stay'>").url == "http://site.test/#"


def test_a_redirect_without_end_is_said_and_can_be_left():
    async def answer(request):
        if request.path == "/round":
            raise web.HTTPFound("/round")
        return page("<a href=/round>round</a>")

    with serving(answer) as port, playing(port) as player:
        sight = player.do("goto [http://site.test/round]")
        assert "ERR_TOO_MANY_REDIRECTS" in sight.notes[0]
        assert "'round'" in player.do("goto [http://site.test/]").text
        assert "chrome-error" in player.do("click <'round'>").url
        assert "'round'" in player.do("go_back").text


def test_a_site_that_is_down_or_wrong_is_named():
    with serving_pages({"/": "<a href=/>again</a>"}) as port:
        player = Player(port)
        with pytest.raises(EnvError, match=r"/missing answers 404\. Check that the site is up, and its URL"):
            player.start("/missing")
        player.close()
        player = Player(port)
        player.start("/")
    with pytest.raises(EnvError, match=r"a site does not answer: http://site\.test/"):
        player.do("click <'again'>")
    player.close()
    player = Player(1)
    with pytest.raises(EnvError, match=r"answers 502: http://site\.test/"):
        player.start("/")
    player.close()


@pytest.mark.parametrize(
    ("headers", "answer", "why"),
    [
        ({}, b"", "it ended before it had answered"),
        ({"X-Site-Copy": "mine"}, b"HTTP/1.1 403 Forbidden\r\nx-site-copy-lost: none\r\n\r\ngone", "403 Forbidden"),
        ({"X-Site-Copy": "mine"}, b"HTTP/1.1 502 Bad Gateway\r\n\r\nFossil did not answer.", "502 Bad Gateway"),
        ({}, b"HTTP/1.1 503 Service Unavailable\r\n\r\nMaintenance", "503 Service Unavailable"),
        ({}, b"HTTP/1.1 504 Gateway Timeout\r\n\r\nToo slow", "504 Gateway Timeout"),
    ],
)
def test_a_site_that_cannot_do_its_part_ends_the_episode(site, headers, answer, why):
    """It dies with a request in its hands, or has lost the copy of the session: an error, and never a page."""
    with dying(answer) as port:
        player = Player(site)
        player.session.fence.routes["other.test:80"] = Address("127.0.0.1", port, headers)
        player.start("/")
        with pytest.raises(EnvError, match=f"a site does not answer: http://other.test/ .*{why}"):
            player.do("goto [http://other.test/]")
        player.close()


def test_a_part_of_a_page_that_a_site_cannot_give_leaves_the_page_as_it_is():
    async def answer(request):
        if request.path == "/":
            return page("<h1>Here</h1><img src=/picture.png><script>fetch('/data')</script><a href=/>again</a>")
        return web.Response(status=503)

    with serving(answer) as port, playing(port) as player:
        assert "'Here'" in player.do("click <'again'>").text


def test_an_answer_that_the_browser_does_not_wait_for_leaves_its_site_up():
    """The page asks for something and is left before it comes: it is the browser that hangs up."""
    with serving(slow) as port, playing(port) as player:
        sight = player.do("click <'go'>")
        assert sight.url == f"{SITE}/next" and "heading 'Second'" in sight.text
        assert (player.session.fence.traffic.requests, player.session.fence.traffic.down) == (3, "")


def test_a_context_that_is_not_waited_for_any_more_holds_no_place(site):
    """A reset that takes too long is cancelled; the browser takes no more sessions, and ends."""
    browser_pool = Player(site, limits=BrowserLimits(contexts=3, lifetime=77)).browser_pool

    async def cancelled():
        room = await browser_pool.context("http://127.0.0.1:9", (800, 600), None)
        family = family_of(room.browser.process)
        for process in family:
            process.suspend()
        waiting = asyncio.create_task(browser_pool.context("http://127.0.0.1:9", (800, 600), None))
        await asyncio.sleep(0.3)
        waiting.cancel()
        (said,) = await asyncio.gather(waiting, return_exceptions=True)
        for process in family:
            process.resume()
        assert isinstance(said, asyncio.CancelledError)
        assert room.browser.open == 1
        await room.close()
        return room.browser

    browser = asyncio.run_coroutine_threadsafe(cancelled(), browser_pool.loop).result(timeout=60)
    deadline = time.monotonic() + 10
    while browser.alive or psutil.pid_exists(browser.process.pid):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_what_a_browser_refuses_to_begin_with_costs_no_other_session(site):
    state = {"cookies": [{"name": "who", "value": "me", "domain": "site.test", "path": "/", "sameSite": "Any"}]}
    with playing(site) as other:
        with pytest.raises(RefusedError):
            other.run(other.browser_pool.context("http://127.0.0.1:9", (800, 600), {"origins": [], **state}))
        browser = other.session._room.browser
        assert (browser.alive, browser.retired) == (True, False)
        assert "'pressed'" in other.do("click <'Press me'>").text


def test_a_browser_that_cannot_start_leaves_no_process(site, tmp_path, monkeypatch):
    broken = tmp_path / "chromium"
    broken.write_text("#!/bin/sh\nsleep 1; exit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CHROMIUM", str(broken))
    before = len(psutil.Process().children(recursive=True))
    player = Player(site, limits=BrowserLimits(contexts=1, lifetime=55))
    with pytest.raises(EnvError, match="does not start"):
        player.start("/")
    player.close()
    assert len(psutil.Process().children(recursive=True)) <= before


def test_a_browser_that_is_killed_costs_its_own_sessions_and_is_replaced(site):
    limits = BrowserLimits(contexts=1, lifetime=100)
    with playing(site, limits=limits) as other:
        player = Player(site, limits=limits)
        player.start("/")
        player.session._room.browser.kill()
        with pytest.raises(EnvError, match="the browser of this session has ended"):
            player.do("click <'Press me'>")
        player.close()
        assert "'pressed'" in other.do("click <'Press me'>").text
        with playing(site, limits=limits) as again:
            assert "'pressed'" in again.do("click <'Press me'>").text


def test_a_browser_that_hangs_is_found_and_killed_with_its_tree(site):
    limits = BrowserLimits(contexts=2, lifetime=100, ping_s=0.2, frozen_s=1.0)
    player = Player(site, limits=limits)
    player.start("/")
    family = family_of(player.session._room.browser.process)
    for process in family:
        process.suspend()
    deadline = time.monotonic() + 15
    while any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in family):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    with pytest.raises(EnvError, match="has ended"):
        player.do("click <'Press me'>")
    player.close()


def test_a_worn_browser_is_replaced_after_its_last_session(site):
    limits = BrowserLimits(contexts=4, lifetime=2)
    with playing(site, limits=limits) as first, playing(site, limits=limits) as second:
        worn = first.session._room.browser
        assert second.session._room.browser is worn
        with playing(site, limits=limits) as third:
            assert third.session._room.browser is not worn
        assert worn.alive
    deadline = time.monotonic() + 10
    while worn.alive or psutil.pid_exists(worn.process.pid):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_many_sessions_play_at_once(site):
    def play(_):
        with playing(site) as player:
            for _ in range(3):
                player.do("click <'Next'>")
                player.do("click <'Home'>")
            return player.sight.url

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(play, range(8))) == [f"{SITE}/"] * 8


def test_nothing_is_left_open_after_many_episodes(site):
    player = Player(site)
    player.start("/")
    handles = []
    for _ in range(12):
        with playing(site) as one:
            one.do("click <'Elsewhere'>")
        handles.append(len(os.listdir("/proc/self/fd")))
    player.close()
    assert max(handles[6:]) <= max(handles[:6]) + 2


def test_a_fence_that_is_closed_cuts_what_is_open():
    with serving(hang) as port:
        player = Player(port, View(settle_s=1))
        begun = time.monotonic()
        with pytest.raises(EnvError):
            player.start("/")
        player.close()
        assert time.monotonic() - begun < 5
        assert player.session.fence.routes == {"site.test:80": Address("127.0.0.1", port)}
